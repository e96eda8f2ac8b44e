// How a job's first failure reaches the ranks that did not fail.
#include "comm/job_failure.hpp"

#include <fmt/format.h>

#include <utility>

#include "tessera/base/error.hpp"

namespace tessera::comm {

void record(JobFailure& failure, int rank, std::string_view cause, std::exception_ptr exception) noexcept {
  failure.rank = rank;
  failure.exception = std::move(exception);
  try {
    failure.cause = cause;
  } catch (...) {
    failure.cause = "out of memory";  // short enough to need none
  }
}

void throw_aborted(const JobFailure& failure) {
  throw AbortedError(fmt::format("rank {} failed first: {}", failure.rank, failure.cause));
}

}  // namespace tessera::comm
