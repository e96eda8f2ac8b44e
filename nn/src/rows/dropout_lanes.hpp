// Dropout for any instruction set and format. The words of 64 columns come from 16 counters: that of column c is word
// c / 16 mod 4 of counter (c / 64 · 16 + c mod 16, row, step, layer), so that words lie in memory as elements do.
#pragma once

#include "src/rows/elements.hpp"
#include "tessera/base/philox_rounds.hpp"

namespace tessera::nn {

inline constexpr std::size_t mask_columns = 64;

// Factors of the columns 64 · block, … of a row: 0 or the mask's scale.
template <typename Set>
void mask_block(const DropoutMask& mask, std::uint64_t row, std::size_t block, float* factors) {
  const auto first = static_cast<std::uint32_t>(block * lane_count);
  const std::uint32_t layer = static_cast<std::uint32_t>(row >> 32) << 16 | mask.layer;
  std::uint32_t drawn[4][lane_count];
  for (std::uint32_t lane = 0; lane < lane_count; ++lane) {
    std::uint32_t counter[4] = {first + lane, static_cast<std::uint32_t>(row), mask.step, layer};
    philox_rounds<Set>(counter, mask.key[0], mask.key[1]);
    drawn[0][lane] = counter[0];
    drawn[1][lane] = counter[1];
    drawn[2][lane] = counter[2];
    drawn[3][lane] = counter[3];
  }
  const auto threshold = words<Set>(mask.drop_below);
  const auto scale = all<Floats<Set>>(mask.scale);
  for (std::size_t word = 0; word < 4; ++word) {
    const auto dropped = load_lanes<Words<Set>>(drawn[word]) < threshold;
    store_lanes(factors + word * lane_count, select(dropped, Floats<Set>{}, scale));
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
