// Running tasks, keeping the first failure, recording and awaiting events.
#include "device/cpu_stream.hpp"

#include <fmt/format.h>

#include <thread>
#include <utility>

#include "tessera/base/error.hpp"

namespace tessera::device {
namespace {

constexpr unsigned longest_delay_us = 300;

std::minstd_rand seeded(std::uint64_t seed) {
  std::seed_seq mixed{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  return std::minstd_rand(mixed);
}

}  // namespace

CpuStream::CpuStream(StreamOptions options)
    : options_(std::move(options)), delays_(seeded(options_.delay_seed.value_or(0))) {}

void CpuStream::record(Event::Implementation& event) { static_cast<CpuEvent&>(event).record(progress_, submitted_); }

void CpuStream::wait(Event::Implementation& event) {
  if (event.complete()) return;
  submit([this, record = static_cast<CpuEvent&>(event).latest()] { await(record); });
}

void CpuStream::await(const CpuEvent::Record& record) const {
  const auto deadline = std::chrono::steady_clock::now() + options_.wait_timeout;
  if (record.progress->wait_for(record.position, deadline)) return;
  throw Error(
      fmt::format("stream \"{}\" waited {} ms for event \"{}\" in vain: the stream that recorded it is stuck or "
                  "slower than wait_timeout allows",
                  name(), options_.wait_timeout.count(), *record.event_name));
}

void CpuStream::wait_for_all() { progress_->wait_for(submitted_, std::nullopt); }

std::exception_ptr CpuStream::failure() const { return failed_.load(std::memory_order_acquire) ? failure_ : nullptr; }

void CpuStream::run_task(Task& task) noexcept {
  if (!failed_.load(std::memory_order_relaxed)) {
    if (options_.delay_seed) delay();
    try {
      task();
    } catch (...) {
      keep_failure(std::current_exception());
    }
  }
  task.reset();  // before the progress: who waited may take apart what the task captured
  progress_->advance();
}

void CpuStream::keep_failure(std::exception_ptr exception) noexcept {
  failure_ = std::move(exception);
  failed_.store(true, std::memory_order_release);
  if (options_.on_failure) options_.on_failure(failure_);
}

void CpuStream::delay() { std::this_thread::sleep_for(std::chrono::microseconds(delays_() % (longest_delay_us + 1))); }

std::unique_ptr<Stream::Implementation> make_cpu_stream(StreamOptions options) {
  return options.mode == StreamMode::immediate ? make_immediate_stream(std::move(options))
                                               : make_queued_stream(std::move(options));
}

}  // namespace tessera::device
