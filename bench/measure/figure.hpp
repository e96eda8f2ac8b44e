// Every benchmark prints one figure per line, "NAME VALUE UNIT", for people and for bench/report.py alike.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace bench {

// The name has no blanks: its parts are joined by slashes, as in "kernels/adamw".
inline void print_figure(std::string_view name, double value, std::string_view unit) {
  fmt::print("{} {:.6g} {}\n", name, value, unit);
}

}  // namespace bench
