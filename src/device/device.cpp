// The faces of devices, events, streams and time stamps: they choose the implementation by device, and refuse events
// that it could not order. On the CPU a stamp is a task that looks at the clock.
#include "tessera/device/device.hpp"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "device/device_backend.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/event.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/device/time_stamps.hpp"

namespace tessera {
namespace {

// The host may wait for any device: that is an immediate stream of the CPU.
bool is_host(const Stream& stream) {
  return stream.device().kind() == DeviceKind::cpu && stream.mode() == StreamMode::immediate;
}

void check_device(const Stream& stream, const Event::Implementation& event) {
  if (event.device() == stream.device()) return;
  throw UsageError(
      fmt::format("stream \"{}\" is on {}, event \"{}\" is on {}: an event serves the streams of its device",
                  stream.name(), to_string(stream.device()), event.name(), to_string(event.device())));
}

}  // namespace

std::string to_string(Device device) {
  return device.kind() == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", device.index());
}

// ---- events ----

Event::Event(Device device, std::string name)
    : implementation_(device.kind() == DeviceKind::cpu ? device::make_cpu_event(std::move(name))
                                                       : device::make_cuda_event(device, std::move(name))) {}
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;
Event::~Event() = default;

const std::string& Event::name() const { return implementation_->name(); }
bool Event::recorded() const { return implementation_->recorded(); }
bool Event::complete() const { return implementation_->complete(); }

// ---- streams ----

namespace {

std::unique_ptr<Stream::Implementation> make_stream(Device device, StreamOptions options) {
  if (device.kind() == DeviceKind::cuda) return device::make_cuda_stream(device, std::move(options));
  if (options.cuda_stream) {
    throw UsageError(fmt::format("stream \"{}\" is on the CPU: no cudaStream_t stands behind it", options.name));
  }
  return device::make_cpu_stream(std::move(options));
}

}  // namespace

Stream::Stream(Device device, StreamOptions options) : implementation_(make_stream(device, std::move(options))) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;

Device Stream::device() const { return implementation_->device(); }
const std::string& Stream::name() const { return implementation_->name(); }
StreamMode Stream::mode() const { return implementation_->mode(); }
bool Stream::meets_peers() const { return implementation_->meets_peers(); }

void Stream::submit(Task task) {
  if (!task) throw UsageError(fmt::format("stream \"{}\" was given an empty task", name()));
  implementation_->submit(std::move(task));
}

void Stream::record(Event& event) {
  check_device(*this, event.implementation());
  implementation_->record(event.implementation());
}

void Stream::wait(Event& event) {
  if (!is_host(*this)) check_device(*this, event.implementation());
  if (!event.recorded()) {
    throw UsageError(
        fmt::format("stream \"{}\" was told to wait for event \"{}\", which was never recorded: record it first",
                    name(), event.name()));
  }
  implementation_->wait(event.implementation());
}

void Stream::synchronize() {
  implementation_->wait_for_all();
  rethrow_failure();
}

std::optional<std::chrono::nanoseconds> Stream::waited() const { return implementation_->waited(); }

std::exception_ptr Stream::failure() const { return implementation_->failure(); }

void Stream::rethrow_failure() const {
  if (const std::exception_ptr first = failure()) std::rethrow_exception(first);
}

// ---- time stamps ----

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
