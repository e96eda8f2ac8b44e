// The largest pixel of a window and where gradients go, for any instruction set and format. Places are numbers below
// 256: bytes in memory, and in lanes integers as wide as the format's arithmetic, whose masks select both.
#pragma once

#include "nn/src/rows/elements.hpp"
#include "vision/src/rows/image_rows.hpp"

namespace tessera::vision {

template <typename Set, Format format, typename Integer>
using PlacesOf = typename LanesOf<Integer, format == Format::fp64 ? Set::floats / 2 : Set::floats>::type;
template <typename Set, Format format>
using Places = PlacesOf<Set, format, std::conditional_t<format == Format::fp64, std::uint64_t, std::uint32_t>>;

// Compilers have instructions for twice and half of a width, and take lanes one by one for more.
template <typename Set, Format format>
[[gnu::always_inline]] inline Places<Set, format> places_of(const std::uint8_t* bytes) {
  const auto pairs =
      converted<PlacesOf<Set, format, std::uint16_t>>(load_lanes<PlacesOf<Set, format, std::uint8_t>>(bytes));
  const auto words = converted<PlacesOf<Set, format, std::uint32_t>>(pairs);
  if constexpr (format == Format::fp64) return converted<Places<Set, format>>(words);
  if constexpr (format != Format::fp64) return words;
}

template <typename Set, Format format>
[[gnu::always_inline]] inline Places<Set, format> read_places(const std::uint8_t* places, std::size_t n) {
  if (n >= lane_count) [[likely]] {
    return places_of<Set, format>(places);
  }
  std::uint8_t padded[lane_count] = {};
  __builtin_memcpy(padded, places, n);
  return places_of<Set, format>(padded);
}

template <typename Set, Format format>
[[gnu::always_inline]] inline void write_places(std::uint8_t* places, std::size_t n, const Places<Set, format>& value) {
  const auto words = converted<PlacesOf<Set, format, std::uint32_t>>(value);
  const auto pairs = converted<PlacesOf<Set, format, std::uint16_t>>(words);
  const auto bytes = converted<PlacesOf<Set, format, std::uint8_t>>(pairs);
  if (n >= lane_count) [[likely]] {
    return store_lanes(places, bytes);
  }
  std::uint8_t padded[lane_count];
  store_lanes(padded, bytes);
  __builtin_memcpy(places, padded, n);
}

template <typename Set, Format format>
[[gnu::always_inline]] inline Places<Set, format> all_at(std::uint8_t place) {
  using Integer = std::conditional_t<format == Format::fp64, std::uint64_t, std::uint32_t>;
  return all<Places<Set, format>>(static_cast<Integer>(place));
}

// A challenger wins where it is larger, or where it is NaN and the champion is not.
template <typename Set, Format format>
void max_pool_of(const MaxPoolWindows& a) {
  using V = Values<Set, format>;
  for (std::size_t window = 0; window < a.windows; ++window) {
    for (std::size_t channel = 0; channel < a.channels; channel += lane_count) {
      const std::size_t n = a.channels - channel;
      const std::size_t from = window * a.step + channel;
      const std::size_t to = window * a.channels + channel;
      V champion = read<Set, format>(a.pixels[0], from, n);
      auto place = all_at<Set, format>(a.places[0]);
      for (std::size_t i = 1; i < a.count; ++i) {
        const V challenger = read<Set, format>(a.pixels[i], from, n);
        const auto is_number = champion <= champion;
        const auto wins = is_number & ~(challenger <= champion);
        place = select(wins, all_at<Set, format>(a.places[i]), place);
        champion = select(wins, challenger, champion);
      }
      write<Set, format>(a.to, to, n, champion);
      write_places<Set, format>(a.place + to, n, place);
    }
  }
}

template <typename Set, Format format>
void max_pool_gradients_of(const MaxPoolGradients& a) {
  using V = Values<Set, format>;
  const V zero = all<V>(Real<format>{});
  const auto one = all_at<Set, format>(1);
  for (std::size_t pixel = 0; pixel < a.pixels; ++pixel) {
    for (std::size_t channel = 0; channel < a.channels; channel += lane_count) {
      const std::size_t n = a.channels - channel;
      const std::size_t from = pixel * a.channels + channel;
      V sum = zero;
      for (std::size_t i = 0; i < a.count; ++i) {
        const auto other = read_places<Set, format>(a.places[i] + from, n) ^ all_at<Set, format>(a.here[i]);
        const V dy = read<Set, format>(a.dy[i], from, n);
        sum = sum + select(other < one, dy, zero);
      }
      write<Set, format>(a.to, pixel * a.step + channel, n, sum);
    }
  }
}

template <typename Set>
void max_pool_lanes(const MaxPoolWindows& a) {
  by_format(a.format, [&]<Format format>() { max_pool_of<Set, format>(a); });
}

template <typename Set>
void max_pool_gradients_lanes(const MaxPoolGradients& a) {
  by_format(a.format, [&]<Format format>() { max_pool_gradients_of<Set, format>(a); });
}

}  // namespace tessera::vision
