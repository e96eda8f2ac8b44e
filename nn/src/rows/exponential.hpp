// The exponential in sixteen lanes. In fp32: x = n ln 2 + r with |r| <= ln 2 / 2, 2^n by its bits and e^r by the
// polynomial of Moshier's Cephes (expf), without fused operations. Within one unit in the last place; 0 below -86.98,
// where results are about to become subnormal, infinity above 88.73, and NaN for NaN. In fp64: the C library's.
#pragma once

#include "src/rows/elements.hpp"

namespace tessera::nn {

template <typename Set>
[[gnu::always_inline]] inline Floats<Set> exponential_of_floats(const Floats<Set>& of) {
  using V = Floats<Set>;
  const auto constant = [](float value) __attribute__((always_inline)) { return all<V>(value); };
  const V low = constant(-86.98f);
  const V high = constant(88.73f);  // beyond it, n = 128 and e^r overflow together
  const V x = select(high < of, high, select(of < low, low, of));
  const V shift = constant(0x1.8p23f);  // makes the units of the sum its last place
  const V shifted = x * constant(1.44269504088896341f) + shift;
  const V n = shifted - shift;
  const V r = x - n * constant(0.693359375f) + n * constant(2.12194440e-4f);
  V p = constant(1.9875691500e-4f);
  p = p * r + constant(1.3981999507e-3f);
  p = p * r + constant(8.3334519073e-3f);
  p = p * r + constant(4.1665795894e-2f);
  p = p * r + constant(1.6666665459e-1f);
  p = p * r + constant(5.0000001201e-1f);
  const V e = p * (r * r) + r + constant(1.0f);
  // 2^(n - 1), from the last bits of `shifted`, and one more factor of 2: 2^128 would be none.
  const V power = bits_as<V>((bits_as<Words<Set>>(shifted) + words<Set>(126)) << 23);
  return select(of < low, V{}, e * constant(2.0f) * power);
}

template <typename V>
[[gnu::always_inline]] inline V exponential_of_doubles(const V& of) {
  if constexpr (is_pair<V>) {
    return {exponential_of_doubles(of.low), exponential_of_doubles(of.high)};
  } else {
    V result{};
    for (std::size_t lane = 0; lane < sizeof(V) / sizeof(double); ++lane) result[lane] = __builtin_exp(of[lane]);
    return result;
  }
}

template <typename Set, Format format>
[[gnu::always_inline]] inline Values<Set, format> exponential(const Values<Set, format>& of) {
  if constexpr (format == Format::fp64) return exponential_of_doubles(of);
  if constexpr (format != Format::fp64) return exponential_of_floats<Set>(of);
}

}  // namespace tessera::nn
