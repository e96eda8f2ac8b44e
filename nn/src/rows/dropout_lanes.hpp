// Dropout for any instruction set and format. The words of 64 columns come from 16 counters: that of column c is word
// c / 16 mod 4 of counter (c / 64 · 16 + c mod 16, row, step, layer), so that words lie in memory as elements do.
#pragma once

#include "src/rows/elements.hpp"

namespace tessera::nn {

inline constexpr std::size_t mask_columns = 64;

// Factors of the columns 64 · block, … of a row: 0 or the mask's scale. Ten rounds of Philox4x32 in each lane, as in
// base/philox.hpp; written so that compilers vectorise over the lanes.
template <typename Set>
void mask_block(const DropoutMask& mask, std::uint64_t row, std::size_t block, float* factors) {
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    std::uint32_t c0 = static_cast<std::uint32_t>(block * lane_count + lane);
    std::uint32_t c1 = static_cast<std::uint32_t>(row);
    std::uint32_t c2 = mask.step;
    std::uint32_t c3 = static_cast<std::uint32_t>(row >> 32) << 16 | mask.layer;
    std::uint32_t key0 = mask.key[0];
    std::uint32_t key1 = mask.key[1];
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53} * c0;
      const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c2;
      c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ key0;
      c1 = static_cast<std::uint32_t>(b);
      c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ key1;
      c3 = static_cast<std::uint32_t>(a);
      key0 += 0x9E3779B9;
      key1 += 0xBB67AE85;
    }
    factors[lane] = c0 < mask.drop_below ? 0.0f : mask.scale;
    factors[lane + 16] = c1 < mask.drop_below ? 0.0f : mask.scale;
    factors[lane + 32] = c2 < mask.drop_below ? 0.0f : mask.scale;
    factors[lane + 48] = c3 < mask.drop_below ? 0.0f : mask.scale;
  }
}

template <typename Set, Format format>
[[gnu::always_inline]] inline Values<Set, format> factor_lanes(const float* factors) {
  constexpr std::size_t native = format == Format::fp64 ? Set::floats / 2 : Set::floats;
  return converted<Values<Set, format>>(load_lanes<typename LanesOf<float, native>::type>(factors));
}

template <typename Set, Format format>
void dropout_row(const DropoutRows& a, std::size_t row) {
  using V = Values<Set, format>;
  const auto* const x = row_of<format>(a.x, row, a.columns);
  auto* const y = row_of<format>(a.y, row, a.columns);
  for (std::size_t first = 0; first < a.columns; first += mask_columns) {
    float factors[mask_columns];
    mask_block<Set>(a.mask, a.mask.first_row + row, first / mask_columns, factors);
    for (std::size_t at = first; at < a.columns && at < first + mask_columns; at += lane_count) {
      const std::size_t n = a.columns - at;
      V value = read<Set, format>(x, at, n) * factor_lanes<Set, format>(factors + (at - first));
      if (a.residual != nullptr) {
        value = read<Set, format>(row_of<format>(a.residual, row, a.columns), at, n) + value;
      }
      write<Set, format>(y, at, n, value);
    }
  }
}

template <typename Set>
void dropout_lanes(const DropoutRows& a) {
  by_format(a.format, [&]<Format format>() {
    for (std::size_t row = 0; row < a.rows; ++row) dropout_row<Set, format>(a, row);
  });
}

}  // namespace tessera::nn
