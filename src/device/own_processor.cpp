// A place for each thread that has ever called, in which it notes where it was when it called last.
#include "device/own_processor.hpp"

#include <sched.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>

namespace tessera::device {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds between_moves{10};
constexpr std::size_t most_threads = 256;  // what there are more of does not move
constexpr int nowhere = -1;

struct Place {
  std::atomic<bool> used = false;
  std::atomic<int> processor = nowhere;
};
std::array<Place, most_threads> places;
std::atomic<std::size_t> end_of_used = 0;  // no place from here on was ever used

// This thread's, from its first call to its end.
class OwnPlace {
 public:
  OwnPlace() noexcept {
    for (std::size_t index = 0; index < places.size(); ++index) {
      if (places[index].used.exchange(true)) continue;
      index_ = index;
      for (std::size_t end = end_of_used.load(); end <= index;) end_of_used.compare_exchange_weak(end, index + 1);
      return;
    }
  }
  ~OwnPlace() {
    if (index_ == most_threads) return;
    places[index_].processor.store(nowhere);
    places[index_].used.store(false);
  }
  OwnPlace(const OwnPlace&) = delete;
  OwnPlace& operator=(const OwnPlace&) = delete;

  void settle() noexcept {
    if (index_ == most_threads) return;
    const int here = sched_getcpu();
    places[index_].processor.store(here, std::memory_order_relaxed);
    if (is_taken(here, index_)) leave(here);
  }

 private:
  static bool is_taken(int processor, std::size_t end) noexcept {
    for (std::size_t index = 0; index < end; ++index) {
      if (places[index].processor.load(std::memory_order_relaxed) == processor) return true;
    }
    return false;
  }

  // A thread moves at once when it may use one processor alone.
  void leave(int here) noexcept {
    const Clock::time_point now = Clock::now();
    if (now - moved_ < between_moves) return;
    moved_ = now;
    cpu_set_t allowed;
    if (here < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    for (int step = 1; step < CPU_SETSIZE; ++step) {
      const int processor = (here + step) % CPU_SETSIZE;
      if (!CPU_ISSET(processor, &allowed) || is_taken(processor, end_of_used.load())) continue;
      cpu_set_t there;
      CPU_ZERO(&there);
      CPU_SET(processor, &there);
      if (sched_setaffinity(0, sizeof there, &there) != 0) return;
      sched_setaffinity(0, sizeof allowed, &allowed);
      places[index_].processor.store(processor, std::memory_order_relaxed);
      return;
    }
  }

  std::size_t index_ = most_threads;
  Clock::time_point moved_{};
};

}  // namespace

void settle_on_own_processor() noexcept {
  thread_local OwnPlace place;
  place.settle();
}

}  // namespace tessera::device
