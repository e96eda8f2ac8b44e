// How a job's first failure reaches the ranks that did not fail, and the user. The error family is closed, so each
// member is named once here.
#include "comm/job_failure.hpp"

#include <fmt/format.h>

#include <utility>

#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

// Tries the members in turn; a base comes after the classes that derive from it.
template <typename Member, typename... Others>
std::exception_ptr same_kind(const std::exception_ptr& exception, const std::string& text) {
  try {
    std::rethrow_exception(exception);
  } catch (const Member&) {
    return std::make_exception_ptr(Member(text));
  } catch (...) {
    if constexpr (sizeof...(Others) > 0) return same_kind<Others...>(exception, text);
  }
  return std::make_exception_ptr(Error(text));
}

bool is_aborted_error(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const AbortedError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

bool FirstFailure::record(int rank, std::string_view cause, std::exception_ptr exception,
                          const Position& verdict) noexcept {
  if (get() != nullptr) return false;
  failure_.rank = rank;
  failure_.verdict = verdict;
  failure_.exception = std::move(exception);
  try {
    failure_.cause = cause;
  } catch (...) {
    failure_.cause = "out of memory";  // short enough to need none
  }
  there_.store(true, std::memory_order_release);
  return true;
}

void throw_aborted(const JobFailure& failure) {
  throw AbortedError(fmt::format("rank {} failed first: {}", failure.rank, failure.cause));
}

void throw_failure(const JobFailure& failure, const Position& announced) {
  const Position& verdict = failure.verdict;
  const bool was_there =
      verdict.number > 0 && announced.channel == verdict.channel && announced.number >= verdict.number;
  if (was_there) throw CommunicationError(failure.cause);
  throw_aborted(failure);
}

std::string text_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown exception";
  }
}

std::exception_ptr first_cause(const JobFailure& failure, const std::exception_ptr& thrown) {
  if (failure.exception != nullptr) return failure.exception;
  if (thrown != nullptr && !is_aborted_error(thrown)) return thrown;
  return std::make_exception_ptr(AbortedError(failure.cause));
}

std::string text_from_rank(int rank, std::string_view text) {
  const std::string subject = fmt::format("rank {}", rank);
  const bool has_it = text.starts_with(subject) && text.find_first_of("0123456789", subject.size()) != subject.size();
  return has_it ? std::string(text) : fmt::format("{}: {}", subject, text);
}

std::exception_ptr exception_from_rank(int rank, const std::exception_ptr& exception) {
  const std::string text = text_from_rank(rank, text_of(exception));
  return same_kind<UsageError, DataError, MemoryError, CommunicationError, AbortedError, UnavailableError,
                   InternalError>(exception, text);
}

}  // namespace tessera::comm
