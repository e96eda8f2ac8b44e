// Where kernels that exist for the CPU alone meet a stream of another device.
#pragma once

#include <string_view>

#include "tessera/device/stream.hpp"

namespace tessera::kernels {

// Returns `stream`; throws UnavailableError, naming the kernel, when it is not on the CPU.
Stream& cpu_only(Stream& stream, std::string_view kernel);

}  // namespace tessera::kernels
