// On the CPU a stamp is a task that looks at the clock.
#include "tessera/device/time_stamps.hpp"

#include <chrono>

#include "device/device_stamps.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

TimeStamps::TimeStamps(Device device, std::size_t count) : values_(count) {
  if (device.kind() == DeviceKind::cuda) on_device_ = device::make_cuda_stamps(device, count);
}
TimeStamps::~TimeStamps() = default;

void TimeStamps::take(Stream& stream, std::size_t index) {
  if (index >= values_.size()) throw InternalError("more time stamps were taken than were counted");
  if (on_device_) return on_device_->take(stream, index);
  stream.submit([value = &values_[index]] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    *value = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  });
}

const std::vector<std::int64_t>& TimeStamps::nanoseconds() {
  if (on_device_) on_device_->read(values_);
  return values_;
}

}  // namespace tessera
