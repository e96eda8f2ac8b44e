// How long a rank waits for others: the job's timeout, from the beginning of its wait or from the last sign of life of
// those who are missing, whichever is later. Time in which this process did not run, because it was stopped, does not
// count.
//
// Signs of life are given by World::note_progress(). A rank that waits for others is as much alive as they are, and no
// more: ranks that wait for each other come to an end.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace tessera::comm {

// When a rank last gave a sign of life. Zero bytes are one that never did, so it may stand in shared memory, where the
// processes of a host have one clock.
class SignOfLife {
 public:
  using Clock = std::chrono::steady_clock;

  Clock::time_point last() const noexcept {
    return Clock::time_point(Clock::duration(ticks_.load(std::memory_order_relaxed)));
  }
  // Earlier ones than the last change nothing.
  void note(Clock::time_point at) noexcept {
    Clock::rep before = ticks_.load(std::memory_order_relaxed);
    const Clock::rep ticks = at.time_since_epoch().count();
    while (before < ticks && !ticks_.compare_exchange_weak(before, ticks, std::memory_order_relaxed)) {
    }
  }

 private:
  std::atomic<Clock::rep> ticks_ = 0;
};

// Texts say times in seconds.
inline double in_seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

// How often whoever waits looks again, and whoever works need not say more often that it does.
inline std::chrono::milliseconds look_interval(std::chrono::milliseconds timeout) {
  return std::clamp<std::chrono::milliseconds>(timeout / 8, std::chrono::milliseconds(1), std::chrono::seconds(1));
}

// One wait. Thread safety: one thread.
class Patience {
 public:
  using Clock = SignOfLife::Clock;

  explicit Patience(std::chrono::milliseconds timeout)
      : timeout_(timeout), interval_(look_interval(timeout)), began_(Clock::now()), now_(began_) {}

  // To be called in every round of the wait. When the next one is due at the latest.
  Clock::time_point look() noexcept {
    const Clock::time_point before = now_;
    now_ = Clock::now();
    if (now_ - before > 2 * interval_) {  // the process was stopped, or had no processor
      pause_ = now_ - before;
      pause_end_ = now_;
      began_ += pause_;
    }
    return now_ + std::min<Clock::duration>(interval_, std::max(began_ + timeout_ - now_, Clock::duration(1'000'000)));
  }

  // Whether the wait itself was that old at the last look.
  bool is_over() const noexcept { return now_ - began_ >= timeout_; }
  // Whether it is over for a rank whose last sign of life was then.
  bool is_over(Clock::time_point last) const noexcept {
    return is_over() && now_ - (last < pause_end_ ? last + pause_ : last) >= timeout_;
  }

 private:
  const std::chrono::milliseconds timeout_;
  const std::chrono::milliseconds interval_;
  Clock::time_point began_;
  Clock::time_point now_;
  Clock::duration pause_{};
  Clock::time_point pause_end_{};
};

}  // namespace tessera::comm
