// The first failure of a job: on which rank, and why. It decides what every other rank and the launcher report.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace tessera::comm {

struct JobFailure {
  int rank = 0;
  std::string cause;
  std::exception_ptr exception;  // null when the job was ended by World::abort
};

// Fills in the first failure. Needs no memory when there is none: the cause then says so.
void record(JobFailure& failure, int rank, std::string_view cause, std::exception_ptr exception) noexcept;

// Throws the AbortedError that a rank gets when another one failed first.
[[noreturn]] void throw_aborted(const JobFailure& failure);

}  // namespace tessera::comm
