// A team is one ticket that all of its threads draw from: the round, how many of its parts are taken, and how many
// there are, in one word. Who takes a part proves by that that the round is not over, so what it read of the round is
// valid.
#include "tessera/device/parallel.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "device/own_processor.hpp"
#include "tessera/base/error.hpp"

namespace tessera::parallel {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::microseconds patience{30};  // that helpers look for work before they sleep
constexpr std::size_t most_parts = std::numeric_limits<std::uint16_t>::max();

std::atomic<int> thread_count = 1;
thread_local bool in_a_part = false;

struct Ticket {
  std::uint64_t word = 0;
  static constexpr std::uint64_t one_taken = std::uint64_t{1} << 16;

  static Ticket of_next_round(Ticket last, std::size_t parts) { return {((last.word >> 32) + 1) << 32 | parts}; }
  std::size_t parts() const { return word & 0xffff; }
  std::size_t taken() const { return word >> 16 & 0xffff; }
  bool is_left() const { return taken() < parts(); }
};

// Keeps the exception of the lowest part of a round that threw.
class FirstError {
 public:
  void note(std::size_t part, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (error_ != nullptr && part_ < part) return;
    part_ = part;
    error_ = std::move(error);
  }
  void rethrow() {
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  std::mutex mutex_;
  std::size_t part_ = 0;
  std::exception_ptr error_;
};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Whether the condition holds within the patience.
template <typename Condition>
bool comes_soon(const Condition& condition) {
  const auto end = steady_clock::now() + patience;
  do {
    for (int round = 0; round < 16; ++round) {
      if (condition()) return true;
      pause();
    }
  } while (steady_clock::now() < end);
  return false;
}

class Team {
 public:
  // Throws UnavailableError where the system gives fewer threads.
  explicit Team(std::size_t helpers) {
    try {
      for (std::size_t helper = 1; helper <= helpers; ++helper) threads_.emplace_back([this, helper] { help(helper); });
    } catch (const std::exception& error) {
      end();
      throw UnavailableError(
          fmt::format("the system gives {} of the {} threads beside the calling one that share an operation ({}): ask "
                      "for fewer (--threads, set_threads())",
                      threads_.size(), helpers, error.what()));
    }
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() { end(); }

  std::size_t helpers() const { return threads_.size(); }

  void run(std::size_t parts, const Call& call) {
    function_.store(call.function, std::memory_order_relaxed);
    context_.store(call.context, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    device::settle_on_own_processor();
    publish(parts);
    take_parts(0);
    const auto all_done = [&] { return done_.load(std::memory_order_acquire) == parts; };
    if (!comes_soon(all_done)) {
      for (std::uint32_t done = done_.load(); done != parts; done = done_.load()) done_.wait(done);
    }
    error_.rethrow();
  }

 private:
  void end() {
    ends_.store(true);
    publish(0);
    for (std::thread& thread : threads_) thread.join();
  }

  Ticket ticket() const { return {ticket_.load(std::memory_order_acquire)}; }

  void publish(std::size_t parts) {
    ticket_.store(Ticket::of_next_round(ticket(), parts).word);
    ticket_.notify_all();
  }

  void take_parts(std::size_t worker) {
    in_a_part = true;
    for (Ticket seen = ticket(); seen.is_left();) {
      const Call call{function_.load(std::memory_order_relaxed), context_.load(std::memory_order_relaxed)};
      if (!ticket_.compare_exchange_weak(seen.word, seen.word + Ticket::one_taken, std::memory_order_acq_rel)) continue;
      run_one(call, seen.taken(), worker);
      // The last one wakes the caller, which may be on its way already; the team outlives this thread.
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == seen.parts()) done_.notify_one();
      seen = ticket();
    }
    in_a_part = false;
  }

  void run_one(const Call& call, std::size_t part, std::size_t worker) noexcept {
    try {
      call.function(call.context, part, worker);
    } catch (...) {
      error_.note(part, std::current_exception());
    }
  }

  void help(std::size_t worker) {
    const auto is_wanted = [this] { return ticket().is_left() || ends_.load(); };
    while (!ends_.load()) {
      if (ticket().is_left()) device::settle_on_own_processor();
      take_parts(worker);
      if (comes_soon(is_wanted)) continue;
      for (Ticket seen = ticket(); !seen.is_left() && !ends_.load(); seen = ticket()) ticket_.wait(seen.word);
    }
  }

  std::atomic<std::uint64_t> ticket_ = 0;
  std::atomic<std::uint32_t> done_ = 0;
  std::atomic<void (*)(const void*, std::size_t, std::size_t)> function_ = nullptr;
  std::atomic<const void*> context_ = nullptr;
  std::atomic<bool> ends_ = false;
  FirstError error_;
  std::vector<std::thread> threads_;
};

Team& team_of_this_thread() {
  thread_local std::unique_ptr<Team> team;
  const auto helpers = static_cast<std::size_t>(threads() - 1);
  if (team == nullptr || team->helpers() != helpers) {
    team.reset();
    team = std::make_unique<Team>(helpers);
  }
  return *team;
}

}  // namespace

void set_threads(int threads) {
  if (threads < 1) throw UsageError(fmt::format("set_threads: threads must be at least 1, but is {}", threads));
  thread_count.store(threads, std::memory_order_relaxed);
}

int threads() noexcept { return thread_count.load(std::memory_order_relaxed); }

void run_parts(std::size_t parts, const Call& call) {
  if (in_a_part || threads() == 1) {
    for (std::size_t part = 0; part < parts; ++part) call.function(call.context, part, 0);
    return;
  }
  if (parts > most_parts) throw UsageError(fmt::format("{} parts of one operation, but {} is most", parts, most_parts));
  team_of_this_thread().run(parts, call);
}

std::size_t shares_of(const Shares& of) noexcept {
  const bool alone = in_a_part || threads() == 1;
  const std::size_t most = alone ? 1 : static_cast<std::size_t>(threads()) * of.turns;
  const std::size_t units = (of.count + of.unit - 1) / of.unit;
  if (units == 0) return 0;
  return std::clamp<std::size_t>(of.count / std::max<std::size_t>(1, of.least), 1, std::min(most, units));
}

}  // namespace tessera::parallel
