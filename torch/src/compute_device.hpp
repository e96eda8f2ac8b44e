// Where torch computes for this rank, and in the order of which stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "tessera/base/bytes.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::torch {

class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;
  ComputeDevice(const ComputeDevice&) = delete;
  ComputeDevice& operator=(const ComputeDevice&) = delete;

  virtual at::Device device() const = 0;
  // The stream for a model to compute on; none on the CPU. Torch's allocator records events on it when a tensor that
  // was noted is freed, be it after the model, so it never ends.
  virtual std::optional<void*> lasting_stream() const = 0;
  // Until leave(), what torch computes on this thread stands in the order of the model's stream: behind what was
  // torch's current stream before, and in front of what that one is given after leave(). Once at a time.
  virtual void enter(Stream& stream) = 0;
  virtual void leave() noexcept = 0;
  // Between the two: the tensor's memory, of another stream of torch's, is used on this one, so that torch's allocator
  // does not give it away meanwhile.
  virtual void note_use(const at::Tensor& tensor) = 0;
  // These count what torch's tensors take: the most at once since begin_count(), beyond what they took then.
  virtual void begin_count() = 0;
  virtual Bytes most_counted() const = 0;

 protected:
  ComputeDevice() = default;
};

// Throws UnavailableError for a CUDA device where this build's torch, or Tessera, has no CUDA half.
std::unique_ptr<ComputeDevice> make_compute_device(Device device);
std::unique_ptr<ComputeDevice> make_cuda_compute_device(Device device);

}  // namespace tessera::torch
