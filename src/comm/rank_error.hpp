// An exception that leaves its rank: its text, and the same exception with the rank's number in front.
#pragma once

#include <exception>
#include <string>

#include "comm/job_failure.hpp"

namespace tessera::comm {

// what(), or "unknown exception". `exception` is not null.
std::string text_of(const std::exception_ptr& exception);

bool is_aborted_error(const std::exception_ptr& exception);

// What to report for a failed job. thrown: what the body of the rank that failed first threw, or null; where the job
// was ended by World::abort, which gives a text only, it may say more.
std::exception_ptr first_cause(const JobFailure& failure, const std::exception_ptr& thrown);

// The same member of the error family with "rank R: " before its text; a foreign exception becomes an Error.
std::exception_ptr exception_from_rank(int rank, const std::exception_ptr& exception);

}  // namespace tessera::comm
