// The rectifier and its gradient, for any instruction set and format.
#pragma once

#include "src/rows/elements.hpp"

namespace tessera::nn {

// A negative zero becomes 0; a NaN, of which no comparison is true, stays one.
template <typename V, typename Real>
[[gnu::always_inline]] inline V rectified(const V& x, Real) {
  const V zero = all<V>(Real{});
  return select(x < zero, zero, x) + zero;
}

// dy where y, which a rectifier gave, is above 0 or NaN.
template <typename V, typename Real>
[[gnu::always_inline]] inline V let_through(const V& y, const V& dy, Real) {
  const V zero = all<V>(Real{});
  return select(zero < y, dy, select(y < all<V>(Real{1}), zero, dy));
}

template <typename Set, Format format>
void relu_of(const ReluRow& a) {
  for (std::size_t at = 0; at < a.count; at += lane_count) {
    const std::size_t n = a.count - at;
    const auto y = read<Set, format>(a.y, at, n);
    if (a.dy == nullptr) {
      write<Set, format>(a.to, at, n, rectified(y, Real<format>{}));
    } else {
      write<Set, format>(a.to, at, n, let_through(y, read<Set, format>(a.dy, at, n), Real<format>{}));
    }
  }
}

template <typename Set>
void relu_lanes(const ReluRow& a) {
  by_format(a.format, [&]<Format format>() { relu_of<Set, format>(a); });
}

}  // namespace tessera::nn
