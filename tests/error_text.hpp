// The text of the error that a call must throw.
#pragma once

#include <string>
#include <utility>

namespace tests {

// `otherwise` where nothing was thrown. Errors that are none of the Expected go on.
template <typename Expected, typename Call>
std::string error_text(Call&& call, std::string otherwise = "") {
  try {
    std::forward<Call>(call)();
  } catch (const Expected& error) {
    return error.what();
  }
  return otherwise;
}

}  // namespace tests
