// How many tasks of one CPU stream have run, and who waits for that. Events keep it alive beyond its stream.
//
// Thread safety: one thread advances, any number wait. Nothing here allocates after construction.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace tessera::device {

class Progress {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;

  std::uint64_t completed() const { return completed_.load(std::memory_order_acquire); }

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
  Waiter* waiters_ = nullptr;
};

}  // namespace tessera::device
