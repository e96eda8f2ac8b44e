// Memory of a CUDA device: one allocation, filled with zeros before anybody has it.
#include <fmt/format.h>

#include "device/cuda/cuda_call.hpp"
#include "device/cuda/cuda_queue.hpp"
#include "device/device_memory.hpp"

namespace tessera::device {
namespace {

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(Device device, Bytes size) : device_(device) {
    make_current(device);
    check(cudaMalloc(&data_, size.count()),
          fmt::format("cudaMalloc of an arena of {} ({} bytes)", to_string(size), size.count()), device);
    fill_with_zeros(size);
  }
  ~CudaMemory() override {
    static_cast<void>(cudaSetDevice(device_.index()));
    static_cast<void>(cudaFree(data_));
  }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  std::byte* data() override { return static_cast<std::byte*>(data_); }

 private:
  // On a stream of its own: waiting for the whole device would wait for other ranks' work there, too, which may wait
  // for this rank.
  void fill_with_zeros(Bytes size) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), "cudaStreamCreateWithPriority", device_);
    const cudaError_t filled = cudaMemsetAsync(data_, 0, size.count(), stream);
    const cudaError_t ended = cudaStreamSynchronize(stream);
    static_cast<void>(cudaStreamDestroy(stream));
    check(filled, "cudaMemsetAsync", device_);
    check(ended, "cudaStreamSynchronize", device_);
  }

  Device device_;
  void* data_ = nullptr;
};

// Pinned: copies between it and any device need no detour.
class PinnedMemory final : public DeviceMemory {
 public:
  PinnedMemory(Device device, Bytes size) {
    make_current(device);
    check(cudaHostAlloc(&data_, size.count(), cudaHostAllocPortable),
          fmt::format("cudaHostAlloc of {} ({} bytes)", to_string(size), size.count()), device);
  }
  ~PinnedMemory() override { static_cast<void>(cudaFreeHost(data_)); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() override { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceMemory> map_cuda_memory(Device device, Bytes size) {
  return std::make_unique<CudaMemory>(device, size);
}

std::unique_ptr<DeviceMemory> map_pinned_memory(Device device, Bytes size) {
  return std::make_unique<PinnedMemory>(device, size);
}

}  // namespace tessera::device
