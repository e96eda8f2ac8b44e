// Numbers as people read them.
#include "tessera/trainer/number_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tessera::trainer {

std::string grouped(std::uint64_t value) {
  const std::string digits = fmt::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string duration(double seconds) {
  constexpr double most = 1e9;
  const auto whole = static_cast<std::uint64_t>(std::llround(std::clamp(seconds, 0.0, most)));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string shown_seconds(double seconds) {
  if (seconds >= 60) return duration(seconds);
  return fmt::format("{:.{}f} s", seconds, seconds < 1 ? 2 : 1);
}

}  // namespace tessera::trainer
