// Which CUDA devices there are, why there are none, and errors of the CUDA runtime in words.
#include <fmt/format.h>

#include "device/cuda/cuda_call.hpp"
#include "device/cuda/cuda_queue.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera {

bool has_cuda() { return true; }

// Without a driver the runtime leaves the count untouched.
int cuda_device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  return status == cudaSuccess ? count : 0;
}

std::string why_no_cuda() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (status == cudaSuccess && count > 0) return "";
  if (status == cudaSuccess || status == cudaErrorNoDevice) return "this machine has no CUDA device";
  return fmt::format("this machine has no CUDA device that can be used: {} ({})", cudaGetErrorString(status),
                     cudaGetErrorName(status));
}

namespace device {

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

namespace {

void reach(int from, int to) {
  const Device device = Device::cuda(from);
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, from, to), "cudaDeviceCanAccessPeer", device);
  if (can == 0) {
    throw UnavailableError(
        fmt::format("cuda:{} cannot reach the memory of cuda:{} on this machine, and ranks that are threads read each "
                    "other's: start fewer ranks, or one process for each device (torchrun), with NCCL",
                    from, to));
  }
  make_current(device);
  const cudaError_t status = cudaDeviceEnablePeerAccess(to, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());
  } else {
    check(status, "cudaDeviceEnablePeerAccess", device);
  }
}

}  // namespace

void share_memory(int count) {
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      if (from != to) reach(from, to);
    }
  }
}

}  // namespace device

Device Device::cuda(int index) {
  const int count = cuda_device_count();
  if (count == 0) throw UnavailableError(fmt::format("device cuda:{} cannot be used: {}", index, why_no_cuda()));
  if (index < 0 || index >= count) {
    throw UnavailableError(
        fmt::format("device cuda:{} cannot be used: this machine has {} CUDA device{}, counted from 0", index, count,
                    count == 1 ? "" : "s"));
  }
  return Device(DeviceKind::cuda, index);
}

}  // namespace tessera
