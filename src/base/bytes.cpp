// Sizes in words: three significant digits (four from 1000 to 1023), in the largest binary unit not above the size.
#include "tessera/base/bytes.hpp"

#include <fmt/format.h>

#include <array>

namespace tessera {

std::string to_string(Bytes value) {
  constexpr std::array<const char*, 6> units = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (value.count() < 1024) return fmt::format("{} B", value.count());
  double scaled = static_cast<double>(value.count()) / 1024.0;
  std::size_t unit = 0;
  for (; scaled >= 1023.5 && unit + 1 < units.size(); ++unit) scaled /= 1024.0;
  const int decimals = scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", scaled, decimals, units[unit]);
}

}  // namespace tessera
