// Running tasks, keeping the first failure, recording and awaiting events.
#include "device/cpu_stream.hpp"

#include <fmt/format.h>

#include <iterator>
#include <thread>
#include <utility>

#include "tessera/base/error.hpp"

namespace tessera::device {
namespace {

// One of these is a stream's pace: where all streams were equally slow, none would get far ahead of another.
constexpr unsigned longest_delays_us[] = {0, 30, 300};

std::minstd_rand seeded(std::uint64_t seed) {
  std::seed_seq mixed{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  return std::minstd_rand(mixed);
}

}  // namespace

CpuStream::CpuStream(StreamOptions options, std::function<void()> prepare)
    : options_(std::move(options)),
      prepare_(std::move(prepare)),
      delays_(seeded(options_.delay_seed.value_or(0))),
      longest_delay_us_(longest_delays_us[delays_() % std::size(longest_delays_us)]) {}

void CpuStream::record(Event::Implementation& event) { static_cast<CpuEvent&>(event).record(progress_, submitted_); }

void CpuStream::wait(Event::Implementation& event) {
  if (event.complete()) return;
  if (event.device() != device()) return submit([this, &event] { await(event); });
  submit([this, record = static_cast<CpuEvent&>(event).latest()] { await(record); });
}

void CpuStream::await(const CpuEvent::Record& record) const {
  const auto deadline = std::chrono::steady_clock::now() + options_.wait_timeout;
  if (!record.progress->wait_for(record.position, deadline)) give_up(*record.event_name);
}

void CpuStream::await(const Event::Implementation& event) const {
  if (!event.wait_on_host(std::chrono::steady_clock::now() + options_.wait_timeout)) give_up(event.name());
}

void CpuStream::give_up(const std::string& event) const {
  throw Error(
      fmt::format("stream \"{}\" waited {} ms for event \"{}\" in vain: the stream that recorded it is stuck or "
                  "slower than wait_timeout allows",
                  name(), options_.wait_timeout.count(), event));
}

void CpuStream::wait_for_all() { progress_->wait_for(submitted_, std::nullopt); }

std::exception_ptr CpuStream::failure() const { return failed_.load(std::memory_order_acquire) ? failure_ : nullptr; }

void CpuStream::run_task(Task& task) noexcept {
  if (!failed_.load(std::memory_order_relaxed)) {
    if (options_.delay_seed) delay();
    try {
      if (prepare_) prepare_();
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

void CpuStream::delay() { std::this_thread::sleep_for(std::chrono::microseconds(delays_() % (longest_delay_us_ + 1))); }

std::unique_ptr<CpuStream> make_issuing_stream(StreamOptions options, std::function<void()> prepare) {
  return options.mode == StreamMode::immediate ? make_immediate_stream(std::move(options), std::move(prepare))
                                               : make_queued_stream(std::move(options), std::move(prepare));
}

std::unique_ptr<Stream::Implementation> make_cpu_stream(StreamOptions options) {
  return make_issuing_stream(std::move(options), nullptr);
}

}  // namespace tessera::device
