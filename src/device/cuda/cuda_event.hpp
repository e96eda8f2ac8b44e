// An event of a CUDA device. It is recorded twice: in the order in which the host issues work (a CpuEvent, since a
// stream may issue from a thread of its own), and in the device's order (a mark). A wait needs both: first until the
// record was issued, then on the device.
#pragma once

#include <memory>
#include <string>

#include "device/cpu_event.hpp"
#include "device/cuda/cuda_queue.hpp"
#include "device/event_implementation.hpp"

namespace tessera::device {

class CudaEvent final : public Event::Implementation {
 public:
  CudaEvent(Device device, std::string name) : issue_(std::move(name)), mark_(std::make_shared<CudaMark>(device)) {}

  Device device() const override { return mark_->device(); }
  const std::string& name() const override { return issue_.name(); }
  bool recorded() const override { return issue_.recorded(); }
  bool complete() const override { return issue_.complete() && mark_->complete(); }
  bool wait_on_host(std::chrono::steady_clock::time_point deadline) const override {
    return issue_.wait_on_host(deadline) && mark_->wait_on_host(deadline);
  }

  CpuEvent& issue() { return issue_; }
  const std::shared_ptr<CudaMark>& mark() const { return mark_; }  // tasks keep it beyond the event

 private:
  CpuEvent issue_;
  std::shared_ptr<CudaMark> mark_;
};

}  // namespace tessera::device
