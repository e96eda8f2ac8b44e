// Time stamps of a CUDA device: events with timing, related to the host's clock by one that was recorded while the host
// looked on. Differences of events are floats, in milliseconds: they are taken from the first stamp, which is near.
#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

#include "device/cuda/cuda_call.hpp"
#include "device/cuda/cuda_queue.hpp"
#include "device/device_backend.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera::device {
namespace {

class TimedMark {
 public:
  explicit TimedMark(Device device) : device_(device) { check(cudaEventCreate(&event_), "cudaEventCreate", device); }
  ~TimedMark() { static_cast<void>(cudaEventDestroy(event_)); }
  TimedMark(const TimedMark&) = delete;
  TimedMark& operator=(const TimedMark&) = delete;

  void record(void* native) {
    check(cudaEventRecord(event_, static_cast<cudaStream_t>(native)), "cudaEventRecord", device_);
    taken_ = true;
  }
  bool taken() const { return taken_; }
  std::int64_t nanoseconds_since(const TimedMark& before) const {
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, before.event_, event_), "cudaEventElapsedTime", device_);
    return std::llround(static_cast<double>(milliseconds) * 1e6);
  }

 private:
  Device device_;
  cudaEvent_t event_ = nullptr;
  bool taken_ = false;
};

class CudaStamps final : public DeviceStamps {
 public:
  CudaStamps(Device device, std::size_t count) {
    make_current(device);
    for (std::size_t i = 0; i < count; ++i) marks_.push_back(std::make_unique<TimedMark>(device));
    CudaQueue queue(device, StreamPriority::normal);
    start_ = std::make_unique<TimedMark>(device);
    start_->record(queue.native());
    queue.synchronize();
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    start_nanoseconds_ = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }

  void take(Stream& stream, std::size_t index) override {
    stream.submit([native = native_stream(stream), mark = marks_[index].get()] { mark->record(native); });
  }

  void read(std::span<std::int64_t> values) const override {
    const TimedMark* first = nullptr;
    std::int64_t first_nanoseconds = 0;
    for (std::size_t i = 0; i < marks_.size(); ++i) {
      if (!marks_[i]->taken()) continue;
      if (first == nullptr) {
        first = marks_[i].get();
        first_nanoseconds = start_nanoseconds_ + first->nanoseconds_since(*start_);
      }
      values[i] = first_nanoseconds + marks_[i]->nanoseconds_since(*first);
    }
  }

 private:
  std::vector<std::unique_ptr<TimedMark>> marks_;
  std::unique_ptr<TimedMark> start_;
  std::int64_t start_nanoseconds_ = 0;
};

}  // namespace

std::unique_ptr<DeviceStamps> make_cuda_stamps(Device device, std::size_t count) {
  return std::make_unique<CudaStamps>(device, count);
}

}  // namespace tessera::device
