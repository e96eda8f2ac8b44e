// Streams and events of the CPU: how far a stream has come (Progress), an event as a position in a stream's order
// (CpuEvent), and what both kinds of stream share (CpuStream): how a task is run, what its failure means, and how
// events mark the order.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>

#include "device/device_backend.hpp"

namespace tessera::device {

// How many tasks of one CPU stream have run, and who waits for that. Events keep it alive beyond its stream.
//
// Thread safety: one thread advances, any number wait. Nothing here allocates after construction.
class Progress {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;

  std::uint64_t completed() const { return completed_.load(std::memory_order_acquire); }

  // The first failure, by the task that runs now; kept before advance().
  void fail(std::exception_ptr failure);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Null while nothing failed among the first `position` tasks, which have run.
  std::exception_ptr failure(std::uint64_t position = std::numeric_limits<std::uint64_t>::max()) const {
    return failed() && failed_at_ < position ? failure_ : nullptr;
  }

  void advance();  // one more task has run

  // Blocks until `position` tasks have run; false when the deadline passed first.
  bool wait_for(std::uint64_t position, Deadline deadline);

 private:
  // Each waiter has a condition of its own, so that it wakes once, when its position is reached.
  struct Waiter {
    std::uint64_t position;
    Waiter* next;
    std::condition_variable reached = {};
  };
  void remove(Waiter& waiter);

  std::mutex mutex_;
  std::atomic<std::uint64_t> completed_ = 0;  // written under the mutex
  std::exception_ptr failure_;                // this and its task's position are written once, before failed_
  std::uint64_t failed_at_ = 0;
  std::atomic<bool> failed_ = false;
  Waiter* waiters_ = nullptr;
};

// A wait copies the event's position when it is issued, so a later record, on whichever stream, does not change what it
// waits for.
class CpuEvent final : public Event::Implementation {
 public:
  struct Record {
    std::shared_ptr<Progress> progress;  // of the recording stream; null when never recorded
    std::uint64_t position = 0;
    std::shared_ptr<const std::string> event_name;  // outlives the event, for errors
  };

  explicit CpuEvent(std::string name);

  Device device() const override { return Device::cpu(); }
  const std::string& name() const override { return *record_.event_name; }
  bool recorded() const override { return record_.progress != nullptr; }
  bool complete() const override;
  bool wait_on_host(std::chrono::steady_clock::time_point deadline) const override {
    return record_.progress->wait_for(record_.position, deadline);
  }

  const Record& latest() const { return record_; }
  // The failure of the stream that recorded it, if that came before; the event is complete.
  std::exception_ptr failure() const override { return record_.progress->failure(record_.position); }
  void record(const std::shared_ptr<Progress>& progress, std::uint64_t position);

 private:
  Record record_;
};

// Invariants: tasks run one at a time in the order of submission; `progress` counts them, run or dropped.
// Thread safety: run_task() on one thread at a time; everything else on the one host thread that submits.
class CpuStream : public Stream::Implementation {
 public:
  // `prepare`, where there is one, runs before each task, on the thread that the task runs on.
  explicit CpuStream(StreamOptions options, std::function<void()> prepare = nullptr);

  Device device() const final { return Device::cpu(); }
  const std::string& name() const final { return options_.name; }
  StreamMode mode() const final { return options_.mode; }
  bool meets_peers() const final { return options_.mode == StreamMode::queued || options_.meets_peers; }
  void record(Event::Implementation& event) final;
  void wait(Event::Implementation& event) final;
  void wait_for_all() final;
  std::optional<std::chrono::nanoseconds> waited() const final;
  std::exception_ptr failure() const final;

 protected:
  const StreamOptions& options() const { return options_; }
  Progress& progress() { return *progress_; }

  std::uint64_t submitted() const { return submitted_; }
  void count_submission() { ++submitted_; }

  // Runs the task and destroys it (or only destroys it, after a failure), then advances the progress.
  void run_task(Task& task) noexcept;

 private:
  void await(const CpuEvent::Record& record);
  void await(const Event::Implementation& event);
  template <typename Wait>
  bool timed(const Wait& wait_until);  // what it returns
  [[noreturn]] void give_up(const std::string& event) const;
  void keep_failure(std::exception_ptr exception) noexcept;
  void delay();

  StreamOptions options_;
  std::function<void()> prepare_;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::uint64_t submitted_ = 0;  // of the host thread
  std::minstd_rand delays_;
  unsigned longest_delay_us_;             // a pace of its own, also by seed
  std::atomic<std::int64_t> waited_ = 0;  // nanoseconds
};

// The stream that the options ask for, immediate or queued, also as another device's issuing half: `prepare` runs
// before each task.
std::unique_ptr<CpuStream> make_issuing_stream(StreamOptions options, std::function<void()> prepare);

}  // namespace tessera::device
