// Ranks that are threads of this process and read each other's memory, of the CPU or of CUDA devices.
#pragma once

#include "comm/transport.hpp"

namespace tessera::comm {

RunThread local_threads(const LaunchOptions& options, ControlRoom& room);

}  // namespace tessera::comm
