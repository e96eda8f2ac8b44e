// Amdahl's law: how far ranks help when a part of the work does not divide.
// Source: Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities",
// AFIPS Spring Joint Computer Conference (1967).
#pragma once

#include <cstddef>

namespace tools::cost {

// One rank's time over that of `ranks` when the fraction `serial` of it does not divide: 1 / (s + (1 - s) / N).
// Both throw tessera::UsageError for a fraction outside [0, 1], and the first for no ranks.
double amdahl_speedup(double serial, std::size_t ranks);

// What no number of ranks reaches, 1 / s; infinite where nothing is serial.
double amdahl_limit(double serial);

}  // namespace tools::cost
