// The Gaussian error linear unit, tanh form, for any instruction set and format:
//   (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)) = s, so y = x s and dy/dx = s + x s (1 - s) 2 du/dx.
#pragma once

#include "src/rows/exponential.hpp"

namespace tessera::nn {

// Of u = sqrt(2/π) (x + 0.044715 x³), times 2.
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
