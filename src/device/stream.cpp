// Stream: chooses the implementation by device, and refuses events that it could not order.
#include "tessera/device/stream.hpp"

#include <fmt/format.h>

#include <utility>

#include "device/event_implementation.hpp"
#include "device/stream_implementation.hpp"
#include "tessera/base/error.hpp"

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

Stream::Stream(Device device, StreamOptions options)
    : implementation_(device.kind() == DeviceKind::cpu ? device::make_cpu_stream(std::move(options))
                                                       : device::make_cuda_stream(device, std::move(options))) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;

Device Stream::device() const { return implementation_->device(); }
const std::string& Stream::name() const { return implementation_->name(); }
StreamMode Stream::mode() const { return implementation_->mode(); }

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

std::exception_ptr Stream::failure() const { return implementation_->failure(); }

void Stream::rethrow_failure() const {
  if (const std::exception_ptr first = failure()) std::rethrow_exception(first);
}

}  // namespace tessera
