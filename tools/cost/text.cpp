// Each kind of number is a table of steps, of which the largest that is not above the number is taken.
#include "text.hpp"

#include <fmt/format.h>

#include <initializer_list>
#include <string_view>

namespace tools::cost {

namespace {

struct Scale {
  double from;  // the smallest number that is written in this unit
  double over;
  std::string_view unit;
};

// `scales` from the smallest; the first also takes what is below it. What rounds up to the next unit is written in it.
std::string scaled_text(double value, std::initializer_list<Scale> scales) {
  constexpr double rounds_up = 1 - 5e-5;
  const Scale* best = scales.begin();
  for (const Scale& scale : scales) {
    if (value >= scale.from * rounds_up) best = &scale;
  }
  return fmt::format("{:.4g}{}{}", value / best->over, best->unit.empty() ? "" : " ", best->unit);
}

}  // namespace

std::string bytes_text(double bytes) {
  return scaled_text(
      bytes,
      {{0, 1, "B"}, {1e3, 1e3, "KB"}, {1e6, 1e6, "MB"}, {1e9, 1e9, "GB"}, {1e12, 1e12, "TB"}, {1e15, 1e15, "PB"}});
}

std::string rate_text(double bytes_per_second) { return bytes_text(bytes_per_second) + "/s"; }

std::string seconds_text(double seconds) {
  if (seconds == 0) return "0 s";
  return scaled_text(seconds, {{0, 1e-9, "ns"},
                               {1e-6, 1e-6, "us"},
                               {1e-3, 1e-3, "ms"},
                               {1, 1, "s"},
                               {120, 60, "min"},
                               {7200, 3600, "h"},
                               {172800, 86400, "days"}});
}

std::string count_text(double count) {
  return scaled_text(count, {{0, 1, ""}, {1e3, 1e3, "K"}, {1e6, 1e6, "M"}, {1e9, 1e9, "B"}, {1e12, 1e12, "T"}});
}

std::string percent_text(double part) { return fmt::format("{:.1f} %", 100 * part); }

std::string grouped(std::uint64_t number) {
  std::string text = fmt::format("{}", number);
  for (std::size_t from_end = 3; from_end < text.size(); from_end += 4) text.insert(text.size() - from_end, 1, ',');
  return text;
}

}  // namespace tools::cost
