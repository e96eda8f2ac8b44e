// The CPU: torch computes on the rank's thread, at once.
#include "src/compute_device.hpp"

#include "src/tensor_memory.hpp"

namespace tessera::torch {

namespace {

class CpuComputeDevice final : public ComputeDevice {
 public:
  at::Device device() const override { return at::kCPU; }
  std::optional<void*> lasting_stream() const override { return std::nullopt; }
  void enter(Stream&) override {}
  void leave() noexcept override {}
  void note_use(const at::Tensor&) override {}
  void begin_count() override { memory_.begin(); }
  Bytes most_counted() const override { return memory_.most(); }

 private:
  TensorMemory memory_;
};

}  // namespace

std::unique_ptr<ComputeDevice> make_compute_device(Device device) {
  if (device.kind() == DeviceKind::cuda) return make_cuda_compute_device(device);
  return std::make_unique<CpuComputeDevice>();
}

}  // namespace tessera::torch
