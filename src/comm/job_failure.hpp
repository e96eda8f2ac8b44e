// The first failure of a job, which decides what every other rank and the launcher report, and exceptions that leave
// their rank.
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "comm/pinned.hpp"

namespace tessera::comm {

// One rank's n-th announcement on one channel, a communicator's place in the job.
struct Position {
  std::size_t channel = 0;
  std::uint64_t number = 0;
  friend auto operator<=>(const Position&, const Position&) = default;
};

struct JobFailure {
  int rank = 0;
  std::string cause;
  std::exception_ptr exception;  // null when the job was ended by World::abort
  Position verdict{};            // of a collective that failed: where; else its number is 0
};

// Keeps a job's first failure. Thread safety: record() by one thread at a time, get() beside it.
class FirstFailure {
 public:
  // Null while nothing failed; constant afterwards.
  const JobFailure* get() const noexcept { return there_.load(std::memory_order_acquire) ? &failure_ : nullptr; }
  // Whether it was the first. Needs no memory when there is none: the cause then says so.
  bool record(int rank, std::string_view cause, std::exception_ptr exception, const Position& verdict = {}) noexcept;

 private:
  JobFailure failure_;
  std::atomic<bool> there_ = false;
};

// One rank's membership in its job: how the job ends for it. Thread safety: all of it, but that leave() and what
// follows are for the thread that launched the rank.
class JobMember : Pinned {
 public:
  virtual ~JobMember() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::chrono::milliseconds timeout() const = 0;

  // The first failure of any rank wins, and all waits end.
  virtual void abort(std::string_view cause, std::exception_ptr exception) noexcept = 0;
  // Null while nothing failed; constant afterwards.
  virtual const JobFailure* failure() const noexcept = 0;

  // A sign of life, as World::note_progress().
  virtual void note_progress() noexcept = 0;

  // This rank takes part in nothing more. Returns when all ranks have left, or the job has failed.
  virtual void leave() noexcept = 0;
  // After a failure, of ranks that are processes: this rank has told the user; whether the one that failed first has,
  // within seconds.
  virtual void say_reported() noexcept {}
  virtual bool wait_for_report() noexcept { return true; }
};

// Throws the AbortedError that a rank gets when another one failed first.
[[noreturn]] void throw_aborted(const JobFailure& failure);
// Throws for a rank that has announced this position last: the verdict, a CommunicationError, when it was in the
// collective that failed; else an AbortedError with the first cause.
[[noreturn]] void throw_failure(const JobFailure& failure, const Position& announced);

// what(), or "unknown exception". `exception` is not null.
std::string text_of(const std::exception_ptr& exception);

// Returns the exception to report for a failed job. thrown: what the body of the rank that failed first threw, or null;
// where the job was ended by World::abort, which gives a text only, it may say more.
std::exception_ptr first_cause(const JobFailure& failure, const std::exception_ptr& thrown);

// The text with "rank R: " before it, where it does not begin with the rank itself.
std::string text_from_rank(int rank, std::string_view text);
// The same member of the error family with such a text; a foreign exception becomes an Error.
std::exception_ptr exception_from_rank(int rank, const std::exception_ptr& exception);

}  // namespace tessera::comm
