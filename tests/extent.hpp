// How much of a product of options a test tries: all of it (scripts/test --all), a selection (scripts/test), or, under
// a sanitizer, which looks at accesses and not at values, what brings each kind of access about.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "sanitizers/sanitizers.hpp"

namespace tests {

inline constexpr bool sanitized = TESSERA_ADDRESS_SANITIZER || TESSERA_THREAD_SANITIZER;

inline bool reduced() {
  const char* value = std::getenv("TESSERA_TEST_MATRIX");
  return sanitized || (value != nullptr && std::string_view(value) == "reduced");
}

// Numbers of ranks: all, or under a sanitizer one, which has neighbours on both sides.
inline std::vector<int> rank_counts(std::vector<int> all) { return sanitized ? std::vector<int>{3} : all; }

// A test goes through all of these, or under a sanitizer through the last.
template <typename T>
std::vector<T> all_or_last(std::initializer_list<T> all) {
  return sanitized ? std::vector<T>{*(all.end() - 1)} : std::vector<T>(all);
}

}  // namespace tests
