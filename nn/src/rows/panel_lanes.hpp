// Panels of a matrix between their stored format and the type of arithmetic, for any instruction set.
#pragma once

#include "src/rows/elements.hpp"

namespace tessera::nn {

template <Format format>
inline constexpr Format arithmetic_format = format == Format::fp64 ? Format::fp64 : Format::fp32;

template <typename Set, Format from, Format to>
[[gnu::always_inline]] inline void convert_panel(const PanelRows& a) {
  using V = Values<Set, from>;
  for (std::size_t row = 0; row < a.rows; ++row) {
    const void* const source = row_of<from>(a.from, row, a.from_stride);
    void* const target = row_of<to>(a.to, row, a.to_stride);
    for (std::size_t at = 0; at < a.columns; at += lane_count) {
      const std::size_t n = a.columns - at;
      V value = read<Set, from>(source, at, n);
      if (a.factors != nullptr) value = value * all<V>(static_cast<const Real<from>*>(a.factors)[row]);
      write<Set, to>(target, at, n, value);
    }
  }
}

template <typename Set>
void load_panel_lanes(const PanelRows& a) {
  by_format(a.format, [&]<Format format>() { convert_panel<Set, format, arithmetic_format<format>>(a); });
}

template <typename Set>
void store_panel_lanes(const PanelRows& a) {
  by_format(a.format, [&]<Format format>() { convert_panel<Set, arithmetic_format<format>, format>(a); });
}

}  // namespace tessera::nn
