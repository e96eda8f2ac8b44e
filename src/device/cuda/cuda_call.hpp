// Every call of the CUDA runtime goes through check(): what fails becomes an exception with the call and the device.
#pragma once

#include <cuda_runtime.h>

#include <string_view>

#include "tessera/device/device.hpp"

namespace tessera::device {

// Throws MemoryError for an allocation that does not fit, UnavailableError without driver or device, Error otherwise.
// Clears the runtime's last error, so that the next call is not blamed for this one.
void check(cudaError_t status, std::string_view call, Device device);

}  // namespace tessera::device
