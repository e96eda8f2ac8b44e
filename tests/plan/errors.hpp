// The text of the error that a call must throw.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "tessera/base/error.hpp"

namespace tessera::plan {

// Empty when nothing was thrown, or something else than a UsageError.
template <typename Call>
std::string usage_error(Call&& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  } catch (const std::exception&) {
    return {};
  }
  return {};
}

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace tessera::plan
