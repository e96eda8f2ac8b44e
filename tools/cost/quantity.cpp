// The tables of units, and a reader that leaves nothing of the text unread.
#include "cost/quantity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <system_error>

#include "tessera/trainer/command_line.hpp"

namespace tools::cost {

namespace {

constexpr double kibi = 1024;
constexpr std::array size_units = {Unit{""},
                                   Unit{"B"},
                                   Unit{"KB", 1e3},
                                   Unit{"kB", 1e3},
                                   Unit{"MB", 1e6},
                                   Unit{"GB", 1e9},
                                   Unit{"TB", 1e12},
                                   Unit{"PB", 1e15},
                                   Unit{"KiB", kibi},
                                   Unit{"MiB", kibi* kibi},
                                   Unit{"GiB", kibi* kibi* kibi},
                                   Unit{"TiB", kibi* kibi* kibi* kibi},
                                   Unit{"PiB", kibi* kibi* kibi* kibi* kibi}};
constexpr std::array rate_units = {Unit{"B/s"},
                                   Unit{"KB/s", 1e3},
                                   Unit{"kB/s", 1e3},
                                   Unit{"MB/s", 1e6},
                                   Unit{"GB/s", 1e9},
                                   Unit{"TB/s", 1e12},
                                   Unit{"KiB/s", kibi},
                                   Unit{"MiB/s", kibi* kibi},
                                   Unit{"GiB/s", kibi* kibi* kibi},
                                   Unit{"TiB/s", kibi* kibi* kibi* kibi},
                                   Unit{"bit/s", 1, 8},
                                   Unit{"Kbit/s", 1e3, 8},
                                   Unit{"kbit/s", 1e3, 8},
                                   Unit{"Mbit/s", 1e6, 8},
                                   Unit{"Gbit/s", 1e9, 8},
                                   Unit{"Tbit/s", 1e12, 8}};
constexpr std::array time_units = {Unit{"ns", 1, 1e9}, Unit{"us", 1, 1e6}, Unit{"µs", 1, 1e6}, Unit{"ms", 1, 1e3},
                                   Unit{"s"},          Unit{"min", 60},    Unit{"h", 3600}};
constexpr std::array part_units = {Unit{""}, Unit{"%", 1, 100}};
constexpr std::array count_units = {Unit{""}, Unit{"K", 1e3}, Unit{"M", 1e6}, Unit{"B", 1e9}};
constexpr std::array per_second = {Unit{""}, Unit{"/s"}};
constexpr std::array no_units = {Unit{""}};

[[noreturn]] void refuse(const std::string& option, std::string_view text, const Quantity& quantity) {
  throw tessera::trainer::OptionError(
      fmt::format("{} takes {}, {}, not \"{}\"", option, quantity.what, quantity.range, text));
}

}  // namespace

const Quantity byte_size = {"a size such as 80GB, 100MB or 64MiB (B, KB, MB, GB, TB, PB; KiB to PiB)", size_units, 1,
                            1e18, "from 1 B to 10^18 B"};
const Quantity byte_rate = {
    "a rate such as 1.25GB/s or 10Gbit/s (B/s, KB/s, MB/s, GB/s, TB/s; KiB/s to TiB/s; bit/s, Kbit/s to Tbit/s)",
    rate_units, 1, 1e18, "from 1 B/s to 10^18 B/s"};
const Quantity duration = {"a time such as 5us or 300ms (ns, us, ms, s, min, h)", time_units, 0, 1e9,
                           "from 0s to 10^9 s"};
const Quantity fraction = {"a fraction such as 0.1 or 10%", part_units, 0, 1, "from 0 to 1"};
const Quantity gain = {"a gain such as 0.3 or 30%", part_units, 0, 1000, "from 0 to 1000"};
const Quantity part = {"a part such as 0.1 or 10%", part_units, 0, 0.999999, "from 0 to 0.999999"};
const Quantity count = {"a whole number such as 1280000 or 1.28M (K, M, B)", count_units, 1, 1e12, "from 1 to 10^12"};
const Quantity rank_count = {"a whole number of ranks", no_units, 1, 1048576, "from 1 to 1048576"};
const Quantity epoch_count = {"a whole number of epochs", no_units, 1, 1e6, "from 1 to 10^6"};
const Quantity sample_rate = {"samples per second, such as 200 or 200/s", per_second, 1e-6, 1e12,
                              "from 10^-6 to 10^12"};
const Quantity learning_rate = {"a learning rate such as 0.1 or 3e-4", no_units, 1e-30, 1e6, "from 10^-30 to 10^6"};

double number(const std::string& option, std::string_view text, const Quantity& quantity) {
  double value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc()) refuse(option, text, quantity);
  std::string_view name(end, static_cast<std::size_t>(last - end));
  if (name.size() > 1 && name.front() == ' ') name.remove_prefix(1);
  const auto unit = std::find_if(quantity.units.begin(), quantity.units.end(),
                                 [&](const Unit& candidate) { return candidate.name == name; });
  if (unit == quantity.units.end()) refuse(option, text, quantity);
  const double result = value * unit->times / unit->over;
  // Not a number is outside of every range, too.
  if (!(result >= quantity.least && result <= quantity.most)) refuse(option, text, quantity);
  return result;
}

std::uint64_t whole_number(const std::string& option, std::string_view text, const Quantity& quantity) {
  constexpr double rounding = 1e-15;  // of 4.35M, say, which no double is
  const double value = number(option, text, quantity);
  const double whole = std::round(value);
  if (std::abs(value - whole) > rounding * value) refuse(option, text, quantity);
  return static_cast<std::uint64_t>(whole);
}

std::vector<double> numbers(const std::string& option, std::string_view text, const Quantity& quantity) {
  std::vector<double> values;
  for (const std::string& item : tessera::trainer::split(std::string(text)))
    values.push_back(number(option, item, quantity));
  return values;
}

std::vector<std::uint64_t> whole_numbers(const std::string& option, std::string_view text, const Quantity& quantity) {
  std::vector<std::uint64_t> values;
  for (const std::string& item : tessera::trainer::split(std::string(text)))
    values.push_back(whole_number(option, item, quantity));
  return values;
}

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

std::string count_text(double number) {
  return scaled_text(number, {{0, 1, ""}, {1e3, 1e3, "K"}, {1e6, 1e6, "M"}, {1e9, 1e9, "B"}, {1e12, 1e12, "T"}});
}

std::string percent_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace tools::cost
