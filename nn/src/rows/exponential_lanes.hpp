// The exponential in sixteen lanes, and the rows that are made with it: softmax and GELU, for any instruction set and
// format.
#pragma once

#include "src/rows/elements.hpp"

namespace tessera::nn {

// In fp32: x = n ln 2 + r with |r| <= ln 2 / 2, 2^n by its bits and e^r by the polynomial of Moshier's Cephes (expf),
// without fused operations. Within one unit in the last place; 0 below -86.98, where results are about to become
// subnormal, infinity above 88.73, and NaN for NaN. In fp64: the C library's.
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

// ---- softmax over rows of logits ----

// Sums run in sixteen lanes over so many elements, and in fp64 from there on.
inline constexpr std::size_t softmax_block = 1024;

template <typename Set, Format format>
void softmax_sum_of(const SoftmaxSum& a) {
  using V = Values<Set, format>;
  V lanes = all<V>(lowest<format>);
  for (std::size_t at = 0; at < a.count; at += lane_count) {
    const std::size_t n = a.count - at;
    lanes = larger(lanes, first_lanes<Set, format>(n, read<Set, format>(a.logits, at, n), lowest<format>));
  }
  const Real<format> largest = reduce<Larger>(lanes);
  double total = 0.0;
  for (std::size_t first = 0; first < a.count; first += softmax_block) {
    V part{};
    for (std::size_t at = first; at < a.count && at < first + softmax_block; at += lane_count) {
      const std::size_t n = a.count - at;
      const V e = exponential<Set, format>(read<Set, format>(a.logits, at, n) - all<V>(largest));
      part = part + first_lanes<Set, format>(n, e, 0);
    }
    total += static_cast<double>(sum(part));
  }
  *a.largest = static_cast<double>(largest);
  *a.sum = total;
}

template <typename Set, Format format>
void softmax_scaled_of(const SoftmaxScaled& a) {
  using V = Values<Set, format>;
  const V largest = all<V>(static_cast<Real<format>>(a.largest));
  const V factor = all<V>(static_cast<Real<format>>(a.factor));
  const V less = all<V>(static_cast<Real<format>>(a.less));
  for (std::size_t at = 0; at < a.count; at += lane_count) {
    const std::size_t n = a.count - at;
    const V e = exponential<Set, format>(read<Set, format>(a.logits, at, n) - largest);
    write<Set, format>(a.to, at, n, e * factor - less);
  }
}

template <typename Set>
void softmax_sum_lanes(const SoftmaxSum& a) {
  by_format(a.format, [&]<Format format>() { softmax_sum_of<Set, format>(a); });
}

template <typename Set>
void softmax_scaled_lanes(const SoftmaxScaled& a) {
  by_format(a.format, [&]<Format format>() { softmax_scaled_of<Set, format>(a); });
}

// ---- the Gaussian error linear unit, tanh form ----
//   (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)) = s, so y = x s and dy/dx = s + x s (1 - s) 2 du/dx

// The factors are those of u = sqrt(2/π) (x + 0.044715 x³), times 2.
inline constexpr double gelu_linear = 2.0 * 0.79788456080286535588;
inline constexpr double gelu_cubic = gelu_linear * 0.044715;

template <typename Set, Format format>
[[gnu::always_inline]] inline Values<Set, format> constant(double value) {
  return all<Values<Set, format>>(static_cast<Real<format>>(value));
}

template <typename Set, Format format>
[[gnu::always_inline]] inline Values<Set, format> gelu_share(const Values<Set, format>& x) {
  const auto exponent = x * (constant<Set, format>(-gelu_linear) - constant<Set, format>(gelu_cubic) * (x * x));
  const auto one = constant<Set, format>(1.0);
  return one / (one + exponential<Set, format>(exponent));
}

template <typename Set, Format format>
void gelu_of(const GeluRow& a) {
  for (std::size_t at = 0; at < a.count; at += lane_count) {
    const std::size_t n = a.count - at;
    const auto x = read<Set, format>(a.x, at, n);
    const auto share = gelu_share<Set, format>(x);
    if (a.dy == nullptr) {
      write<Set, format>(a.to, at, n, x * share);
    } else {
      const auto slope = constant<Set, format>(gelu_linear) + constant<Set, format>(3.0 * gelu_cubic) * (x * x);
      const auto derivative = share + x * share * (constant<Set, format>(1.0) - share) * slope;
      write<Set, format>(a.to, at, n, read<Set, format>(a.dy, at, n) * derivative);
    }
  }
}

template <typename Set>
void gelu_lanes(const GeluRow& a) {
  by_format(a.format, [&]<Format format>() { gelu_of<Set, format>(a); });
}

}  // namespace tessera::nn
