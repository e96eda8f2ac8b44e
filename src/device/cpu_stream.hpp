// What both kinds of CPU stream share: how a task is run, what its failure means, and how events mark the order.
//
// Invariants: tasks run one at a time in the order of submission; `progress` counts them, run or dropped.
// Thread safety: run_task() on one thread at a time; everything else on the one host thread that submits.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "device/cpu_event.hpp"
#include "device/progress.hpp"
#include "device/stream_implementation.hpp"

namespace tessera::device {

class CpuStream : public Stream::Implementation {
 public:
  // `prepare`, where there is one, runs before each task, on the thread that the task runs on.
  explicit CpuStream(StreamOptions options, std::function<void()> prepare = nullptr);

  Device device() const final { return Device::cpu(); }
  const std::string& name() const final { return options_.name; }
  StreamMode mode() const final { return options_.mode; }
  void record(Event::Implementation& event) final;
  void wait(Event::Implementation& event) final;
  void wait_for_all() final;
  std::exception_ptr failure() const final;

 protected:
  const StreamOptions& options() const { return options_; }
  Progress& progress() { return *progress_; }

  std::uint64_t submitted() const { return submitted_; }
  void count_submission() { ++submitted_; }

  // Runs the task and destroys it (or only destroys it, after a failure), then advances the progress.
  void run_task(Task& task) noexcept;

 private:
  void await(const CpuEvent::Record& record) const;
  void await(const Event::Implementation& event) const;
  [[noreturn]] void give_up(const std::string& event) const;
  void keep_failure(std::exception_ptr exception) noexcept;
  void delay();

  StreamOptions options_;
  std::function<void()> prepare_;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::uint64_t submitted_ = 0;  // of the host thread
  std::minstd_rand delays_;
  unsigned longest_delay_us_;   // a pace of its own, also by seed
  std::exception_ptr failure_;  // written once, before failed_
  std::atomic<bool> failed_ = false;
};

std::unique_ptr<CpuStream> make_queued_stream(StreamOptions options, std::function<void()> prepare);
std::unique_ptr<CpuStream> make_immediate_stream(StreamOptions options, std::function<void()> prepare);

// The one of the two that the options ask for, as another device's issuing half: `prepare` runs before each task.
std::unique_ptr<CpuStream> make_issuing_stream(StreamOptions options, std::function<void()> prepare);

}  // namespace tessera::device
