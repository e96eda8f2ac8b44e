// The two formulas.
#include "amdahl.hpp"

#include <limits>

#include "tessera/base/error.hpp"

namespace tools::cost {

namespace {

void check_fraction(double serial) {
  if (!(serial >= 0 && serial <= 1)) throw tessera::UsageError("a serial fraction is from 0 to 1");
}

}  // namespace

double amdahl_speedup(double serial, std::size_t ranks) {
  check_fraction(serial);
  if (ranks == 0) throw tessera::UsageError("a speed-up is that of 1 rank or more");
  return 1 / (serial + (1 - serial) / static_cast<double>(ranks));
}

double amdahl_limit(double serial) {
  check_fraction(serial);
  return serial > 0 ? 1 / serial : std::numeric_limits<double>::infinity();
}

}  // namespace tools::cost
