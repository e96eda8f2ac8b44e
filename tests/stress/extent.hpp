// How much of a stress test runs: all of it, or a little where every step takes many times as long.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string_view>

namespace stress {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif
#else
inline constexpr bool sanitized = false;
#endif

inline bool reduced() {
  const char* value = std::getenv("TESSERA_TEST_MATRIX");
  return sanitized || (value != nullptr && std::string_view(value) == "reduced");
}

inline std::size_t extent(std::size_t full, std::size_t little) { return reduced() ? little : full; }

}  // namespace stress
