// The dynamic maps of 8-bit moments (tessera/kernels/adamw8bit.hpp), made by the compiler, and the nearest code by
// them. Files that are compiled for one instruction set include this, so there is data here, and functions that are
// inlined.
#pragma once

#include <cstdint>

#include "kernels/any_device.hpp"

namespace tessera::kernels {

struct DynamicMap {
  float value[256];   // of each code
  float border[256];  // of which the first 255 are used: the k-th number of the map is nearest up to the k-th border
  std::uint32_t first_code;  // of the map's smallest number
};

namespace dynamic_map {

// The largest fp32 number that is not above the middle of two: an fp32 number is above both or above none.
constexpr float border_between(float below, float above) {
  const double middle = (static_cast<double>(below) + static_cast<double>(above)) / 2.0;  // exact
  const float nearest = static_cast<float>(middle);
  if (static_cast<double>(nearest) <= middle) return nearest;
  const auto bits = __builtin_bit_cast(std::uint32_t, nearest);
  return __builtin_bit_cast(float, nearest > 0.0f ? bits - 1 : bits + 1);
}

// Decade d from 0 to 6 has 2^d numbers of a sign, or twice as many where there is one sign alone: the middles of equal
// parts of [0.1, 1], times 10^(d - 6).
constexpr double decades[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};

constexpr DynamicMap make(bool has_signs) {
  double positive[256] = {};
  unsigned count = 0;
  for (unsigned decade = 0; decade < 7; ++decade) {
    const unsigned parts = (has_signs ? 1u : 2u) << decade;
    for (unsigned part = 0; part < parts; ++part) {
      positive[count++] = decades[decade] * (0.1 + 0.9 * (part + 0.5) / parts);
    }
  }
  float ascending[256] = {};
  unsigned filled = 0;
  if (has_signs) {
    for (unsigned k = count; k > 0; --k) ascending[filled++] = -static_cast<float>(positive[k - 1]);
  }
  const unsigned zero = filled;
  ascending[filled++] = 0.0f;
  for (unsigned k = 0; k < count; ++k) ascending[filled++] = static_cast<float>(positive[k]);
  ascending[filled] = 1.0f;
  DynamicMap map{};
  map.first_code = (256u - zero) % 256u;
  for (unsigned k = 0; k < 256; ++k) map.value[(k + map.first_code) % 256u] = ascending[k];
  for (unsigned k = 0; k < 255; ++k) map.border[k] = border_between(ascending[k], ascending[k + 1]);
  return map;
}

}  // namespace dynamic_map

// The number of the map's borders that x is above; 0 for what is not a number. Eight steps, whatever x is.
[[gnu::always_inline]] TESSERA_ANY_DEVICE inline std::uint32_t borders_below(const float* border, float x) {
  std::uint32_t found = 0;
  for (std::uint32_t step = 128; step > 0; step /= 2) found += x > border[found + step - 1] ? step : 0;
  return found;
}

}  // namespace tessera::kernels
