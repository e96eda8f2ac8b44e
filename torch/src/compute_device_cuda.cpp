// CUDA: the model's cudaStream_t is torch's current stream while a pass runs. Both runtimes share the device's context,
// so streams and events of one are the other's.
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>

#include "src/compute_device.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera::torch {

namespace {

// Returns the bytes of blocks of all sizes together.
auto bytes_on(at::Device device) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes.at(0);
}

class CudaComputeDevice final : public ComputeDevice {
 public:
  explicit CudaComputeDevice(Device device) : device_(at::kCUDA, static_cast<c10::DeviceIndex>(device.index())) {}

  at::Device device() const override { return device_; }

  // Torch destroys no stream of its pool.
  std::optional<void*> lasting_stream() const override {
    return c10::cuda::getStreamFromPool(false, device_.index()).stream();
  }

  void enter(Stream& stream) override {
    const auto index = device_.index();
    around_ = c10::cuda::getCurrentCUDAStream(index);
    inside_ = c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(native_stream(stream)), index);
    order(*around_, *inside_);
    c10::cuda::setCurrentCUDAStream(*inside_);
  }

  void leave() noexcept override {
    if (!around_) return;
    c10::cuda::setCurrentCUDAStream(*around_);
    try {
      order(*inside_, *around_);
    } catch (...) {
      // The device has failed, which the model's stream says when it synchronises.
    }
    around_.reset();
  }

  void note_use(const at::Tensor& tensor) override {
    if (tensor.is_cuda()) tensor.record_stream(inside_->unwrap());
  }

  // The count is the device's, which is this rank's alone.
  void begin_count() override {
    c10::cuda::CUDACachingAllocator::resetPeakStats(device_.index());
    begun_ = bytes_on(device_).current;
  }
  Bytes most_counted() const override { return Bytes(static_cast<std::uint64_t>(bytes_on(device_).peak - begun_)); }

 private:
  void order(const c10::cuda::CUDAStream& first, const c10::cuda::CUDAStream& second) {
    at::cuda::CUDAEvent reached;
    reached.record(first);
    reached.block(second);
  }

  const at::Device device_;
  std::optional<c10::cuda::CUDAStream> around_;  // torch's current stream outside of passes; empty there
  std::optional<c10::cuda::CUDAStream> inside_;
  std::int64_t begun_ = 0;  // bytes
};

}  // namespace

std::unique_ptr<ComputeDevice> make_cuda_compute_device(Device device) {
  return std::make_unique<CudaComputeDevice>(device);
}

}  // namespace tessera::torch
