// The error family is closed, so each member is named once here.
#include "comm/rank_error.hpp"

#include <fmt/format.h>

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

}  // namespace

std::string text_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown exception";
  }
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

std::exception_ptr first_cause(const JobFailure& failure, const std::exception_ptr& thrown) {
  if (failure.exception != nullptr) return failure.exception;
  if (thrown != nullptr && !is_aborted_error(thrown)) return thrown;
  return std::make_exception_ptr(AbortedError(failure.cause));
}

std::exception_ptr exception_from_rank(int rank, const std::exception_ptr& exception) {
  const std::string text = fmt::format("rank {}: {}", rank, text_of(exception));
  return same_kind<UsageError, DataError, MemoryError, CommunicationError, AbortedError, UnavailableError,
                   InternalError>(exception, text);
}

}  // namespace tessera::comm
