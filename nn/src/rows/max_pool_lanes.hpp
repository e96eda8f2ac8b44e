// The largest pixel of a window and where gradients go, for any instruction set and format. Places are numbers below
// 256, which lanes of the type of arithmetic hold exactly.
#pragma once

#include "src/rows/elements.hpp"

namespace tessera::nn {

template <typename Set, Format format>
[[gnu::always_inline]] inline Values<Set, format> read_places(const std::uint8_t* places, std::size_t n) {
  Real<format> values[lane_count] = {};
  for (std::size_t lane = 0; lane < lane_count && lane < n; ++lane)
    values[lane] = static_cast<Real<format>>(places[lane]);
  return load_lanes<Values<Set, format>>(values);
}

// A challenger wins where it is larger, or where it is NaN and the champion is not.
template <typename Set, Format format>
void max_pool_of(const MaxPoolPixel& a) {
  using V = Values<Set, format>;
  const V infinite = all<V>(static_cast<Real<format>>(__builtin_inf()));
  const V zero = all<V>(Real<format>{});
  const V one = all<V>(Real<format>{1});
  for (std::size_t at = 0; at < a.channels; at += lane_count) {
    const std::size_t n = a.channels - at;
    V champion = read<Set, format>(a.pixels[0], at, n);
    V place = all<V>(static_cast<Real<format>>(a.places[0]));
    for (std::size_t i = 1; i < a.count; ++i) {
      const V challenger = read<Set, format>(a.pixels[i], at, n);
      const V here = all<V>(static_cast<Real<format>>(a.places[i]));
      // 1 for numbers, 0 for NaN: which is neither below infinity nor infinity itself.
      const V is_number = select(challenger < infinite, one, select(zero < challenger, one, zero));
      const V was_number = select(champion < infinite, one, select(zero < champion, one, zero));
      const V larger = select(champion < challenger, one, zero);
      const V wins = select(is_number < was_number, one, larger);
      place = select(zero < wins, here, place);
      champion = select(zero < wins, challenger, champion);
    }
    write<Set, format>(a.to, at, n, champion);
    Real<format> places[lane_count];
    store_lanes(places, place);
    for (std::size_t lane = 0; lane < lane_count && lane < n; ++lane) {
      a.place[at + lane] = static_cast<std::uint8_t>(places[lane]);
    }
  }
}

template <typename Set, Format format>
void max_pool_gradient_of(const MaxPoolGradient& a) {
  using V = Values<Set, format>;
  const V zero = all<V>(Real<format>{});
  const V half = all<V>(static_cast<Real<format>>(0.5));
  for (std::size_t at = 0; at < a.channels; at += lane_count) {
    const std::size_t n = a.channels - at;
    V sum = zero;
    for (std::size_t i = 0; i < a.count; ++i) {
      const V distance = read_places<Set, format>(a.places[i] + at, n) - all<V>(static_cast<Real<format>>(a.here[i]));
      const V dy = read<Set, format>(a.dy[i], at, n);
      sum = sum + select(distance * distance < half, dy, zero);
    }
    write<Set, format>(a.to, at, n, sum);
  }
}

template <typename Set>
void max_pool_lanes(const MaxPoolPixel& a) {
  by_format(a.format, [&]<Format format>() { max_pool_of<Set, format>(a); });
}

template <typename Set>
void max_pool_gradient_lanes(const MaxPoolGradient& a) {
  by_format(a.format, [&]<Format format>() { max_pool_gradient_of<Set, format>(a); });
}

}  // namespace tessera::nn
