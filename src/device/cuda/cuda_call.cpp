// Errors of the CUDA runtime in words.
#include "device/cuda/cuda_call.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera::device {

void check(cudaError_t status, std::string_view call, Device device) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  const std::string text = fmt::format("{} failed on {}: {} ({})", call, to_string(device), cudaGetErrorString(status),
                                       cudaGetErrorName(status));
  switch (status) {
    case cudaErrorMemoryAllocation: throw MemoryError(text);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice: throw UnavailableError(text);
    default: throw Error(text);
  }
}

void make_current(Device device) { check(cudaSetDevice(device.index()), "cudaSetDevice", device); }

}  // namespace tessera::device
