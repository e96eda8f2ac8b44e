// The text of the error that a call must throw.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "../error_text.hpp"
#include "tessera/base/error.hpp"

namespace tessera::plan {

// Empty when nothing was thrown.
template <typename Call>
std::string usage_error(Call&& call) {
  return tests::error_text<UsageError>(std::forward<Call>(call));
}

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace tessera::plan
