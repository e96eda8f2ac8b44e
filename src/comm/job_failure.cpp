// How a job's first failure reaches the ranks that did not fail.
#include "comm/job_failure.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera::comm {

void throw_aborted(const JobFailure& failure) {
  throw AbortedError(fmt::format("rank {} failed first: {}", failure.rank, failure.cause));
}

}  // namespace tessera::comm
