// An exception that leaves its rank: its text, and the same exception with the rank's number in front.
#pragma once

#include <exception>
#include <string>

namespace tessera::comm {

// what(), or "unknown exception". `exception` is not null.
std::string text_of(const std::exception_ptr& exception);

bool is_aborted_error(const std::exception_ptr& exception);

// Throws the same member of the error family with "rank R: " before its text; a foreign exception becomes an Error.
[[noreturn]] void rethrow_from_rank(int rank, const std::exception_ptr& exception);

}  // namespace tessera::comm
