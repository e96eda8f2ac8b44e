// A CUDA stream is a CPU stream that issues, and a queue of the device that it issues to. Tasks run on the host and
// enqueue; a queued stream runs them on its own thread, so that a collective which must meet its peers before it can be
// enqueued blocks nobody else. Waits on the device refer only to records that were issued: no cycle can arise.
#include "device/cpu_stream.hpp"
#include "device/cuda/cuda_call.hpp"
#include "device/cuda/cuda_queue.hpp"
#include "device/device_backend.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

namespace tessera::device {
namespace {

// It is recorded twice: in the order in which the host issues work (a CpuEvent, since a stream may issue from a thread
// of its own), and in the device's order (a mark). A wait needs both: first until the record was issued, then on the
// device.
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

  std::exception_ptr failure() const override { return issue_.failure(); }

  CpuEvent& issue() { return issue_; }
  const std::shared_ptr<CudaMark>& mark() const { return mark_; }  // tasks keep it beyond the event

 private:
  CpuEvent issue_;
  std::shared_ptr<CudaMark> mark_;
};

class CudaStream final : public Stream::Implementation {
 public:
  CudaStream(Device device, StreamOptions options)
      : queue_(options.cuda_stream ? CudaQueue(device, *options.cuda_stream) : CudaQueue(device, options.priority)),
        issuing_(make_issuing_stream(std::move(options), [device] { make_current(device); })) {}

  Device device() const override { return queue_.device(); }
  const std::string& name() const override { return issuing_->name(); }
  StreamMode mode() const override { return issuing_->mode(); }
  bool meets_peers() const override { return issuing_->meets_peers(); }
  void submit(Task task) override { issuing_->submit(std::move(task)); }
  void record(Event::Implementation& event) override;
  void wait(Event::Implementation& event) override;
  void wait_for_all() override;
  std::optional<std::chrono::nanoseconds> waited() const override { return std::nullopt; }
  std::exception_ptr failure() const override { return issuing_->failure(); }

  CudaQueue& queue() { return queue_; }

 private:
  CudaQueue queue_;
  std::unique_ptr<CpuStream> issuing_;  // last: its tasks use the queue
};

void CudaStream::record(Event::Implementation& event) {
  auto& recorded = static_cast<CudaEvent&>(event);
  issuing_->submit([this, mark = recorded.mark()] { queue_.record(*mark); });
  issuing_->record(recorded.issue());
}

// A mark may have been recorded again by the time the wait is issued: the device then waits a little longer, for work
// that was issued before this wait.
void CudaStream::wait(Event::Implementation& event) {
  auto& awaited = static_cast<CudaEvent&>(event);
  issuing_->wait(awaited.issue());
  issuing_->submit([this, mark = awaited.mark()] { queue_.wait(*mark); });
}

// An error of the device that shows up here belongs to the stream like that of a task.
void CudaStream::wait_for_all() {
  issuing_->submit([this] { queue_.synchronize(); });
  issuing_->wait_for_all();
}

}  // namespace

std::unique_ptr<Stream::Implementation> make_cuda_stream(Device device, StreamOptions options) {
  return std::make_unique<CudaStream>(device, std::move(options));
}

std::unique_ptr<Event::Implementation> make_cuda_event(Device device, std::string name) {
  return std::make_unique<CudaEvent>(device, std::move(name));
}

CudaQueue& cuda_queue(Stream& stream) {
  if (stream.device().kind() != DeviceKind::cuda) {
    throw UsageError(fmt::format("stream \"{}\" is on {}: it has no CUDA stream behind it", stream.name(),
                                 to_string(stream.device())));
  }
  return static_cast<CudaStream&>(stream.implementation()).queue();
}

}  // namespace tessera::device

void* tessera::native_stream(Stream& stream) { return device::cuda_queue(stream).native(); }
