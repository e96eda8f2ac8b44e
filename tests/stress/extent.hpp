// How much of a stress test runs: all of it, or a little where every step takes many times as long.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string_view>

#include "../sanitizers/sanitizers.hpp"

namespace stress {

inline constexpr bool sanitized = TESSERA_ADDRESS_SANITIZER || TESSERA_THREAD_SANITIZER;

inline bool reduced() {
  const char* value = std::getenv("TESSERA_TEST_MATRIX");
  return sanitized || (value != nullptr && std::string_view(value) == "reduced");
}

inline std::size_t extent(std::size_t full, std::size_t little) { return reduced() ? little : full; }

}  // namespace stress
