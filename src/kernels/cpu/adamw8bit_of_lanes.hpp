// AdamW with 8-bit moments for any instruction set: a block's new moments stay in the nearest cache until their largest
// is known. The search by borders is integers and comparisons, which compilers turn into gathers where there are any.
#pragma once

#include "kernels/cpu/blocks.hpp"
#include "kernels/cpu/updates_of_lanes.hpp"
#include "kernels/dynamic_map.hpp"

namespace tessera::kernels {

inline constexpr std::size_t moment_block_elements =
    256;  // moment_block of adamw8bit.hpp, which this file may not include

template <typename Lanes>
[[gnu::always_inline]] inline Lanes read_moments(const std::uint8_t* codes, const DynamicMap& map, float scale,
                                                 std::size_t at, std::size_t n) {
  float numbers[lane_count] = {};
  for (std::size_t k = 0; k < n; ++k) numbers[k] = map.value[codes[at + k]];
  return Lanes::load(numbers) * Lanes::all(scale);
}

// Returns the new scale.
template <typename Lanes>
[[gnu::always_inline]] inline float write_moments(const float* moments, std::size_t count, const DynamicMap& map,
                                                  Lanes magnitudes, std::uint8_t* codes) {
  const float scale = __builtin_bit_cast(float, largest_of(magnitudes));
  const Lanes divisor = Lanes::all(scale == 0.0f ? 1.0f : scale);
  for_each_block(
      count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        float x[lane_count];
        (Lanes::load(moments + at) / divisor).store(x);
        std::uint32_t found[lane_count] = {};
        for (std::uint32_t step = 128; step > 0; step /= 2) {
          for (std::size_t k = 0; k < lane_count; ++k) found[k] += x[k] > map.border[found[k] + step - 1] ? step : 0;
        }
        for (std::size_t k = 0; k < n; ++k) codes[at + k] = static_cast<std::uint8_t>(found[k] + map.first_code);
      });
  return scale;
}

template <typename Lanes, typename Rounding>
void adamw8bit_as(const AdamW8bitArguments& a, const AdamWRule& rule, const DynamicMap& first_map,
                  const DynamicMap& second_map) {
  const AdamWOfLanes<Lanes> adamw(rule);
  for (std::size_t begin = 0, block = 0; begin < a.count; begin += moment_block_elements, ++block) {
    const std::size_t here = a.count - begin < moment_block_elements ? a.count - begin : moment_block_elements;
    float first[moment_block_elements], second[moment_block_elements];
    Lanes largest_first = Lanes::all(0.0f), largest_second = Lanes::all(0.0f);
    for_each_block(
        here, [&](std::size_t within, std::size_t n) __attribute__((always_inline)) {
          const std::size_t at = begin + within;
          Lanes m = read_moments<Lanes>(a.first_codes, first_map, a.first_scales[block], at, n);
          Lanes v = read_moments<Lanes>(a.second_codes, second_map, a.second_scales[block], at, n);
          const Lanes master = adamw.update(read<Lanes>(a.master, at, n), m, v,
                                            read_gradient<Lanes>(a.gradient, a.gradient_format, at, n));
          write_master<Lanes, Rounding>(a.master, a.rounded, at, n, master);
          m.store(first + within);
          v.store(second + within);
          largest_first = larger_magnitudes(largest_first, m);
          largest_second = larger_magnitudes(largest_second, v);
        });
    a.first_scales[block] = write_moments<Lanes>(first, here, first_map, largest_first, a.first_codes + begin);
    a.second_scales[block] = write_moments<Lanes>(second, here, second_map, largest_second, a.second_codes + begin);
  }
  if constexpr (Rounding::past_caches) Lanes::fence();
}

template <typename Lanes>
void adamw8bit_lanes(const AdamW8bitArguments& a, const AdamWRule& rule, const DynamicMap& first_map,
                     const DynamicMap& second_map) {
  with_rounding<Lanes>(a.rounded, a.rounded_format, a.count,
                       [&](auto rounding) { adamw8bit_as<Lanes, decltype(rounding)>(a, rule, first_map, second_map); });
}

}  // namespace tessera::kernels
