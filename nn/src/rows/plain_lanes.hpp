// Rows added, summed up and converted, for any instruction set and format.
#pragma once

#include "src/rows/elements.hpp"

namespace tessera::nn {

template <typename Set, Format format>
void add_of(const AddRow& a) {
  for (std::size_t at = 0; at < a.count; at += lane_count) {
    const std::size_t n = a.count - at;
    write<Set, format>(a.y, at, n, read<Set, format>(a.a, at, n) + read<Set, format>(a.b, at, n));
  }
}

// `blocks` × 16 columns at once, row after row.
template <typename Set, Format format, std::size_t blocks>
[[gnu::always_inline]] inline void sum_columns(const SumRows& a, std::size_t first) {
  Values<Set, format> total[blocks] = {};
  for (std::size_t block = 0; a.accumulate && block < blocks; ++block) {
    const std::size_t at = first + block * lane_count;
    total[block] = read<Set, format>(a.to, at, a.dim - at);
  }
  for (std::size_t i = 0; i < a.count; ++i) {
    const std::size_t row = a.index == nullptr ? i * a.step : static_cast<std::size_t>(a.index[i]);
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t at = first + block * lane_count;
      total[block] = total[block] + read<Set, format>(row_of<format>(a.from, row, a.stride), at, a.dim - at);
    }
  }
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t at = first + block * lane_count;
    write<Set, format>(a.to, at, a.dim - at, total[block]);
  }
}

template <typename Set, Format format>
void sum_rows_of(const SumRows& a) {
  if (a.count == 0 && a.accumulate) return;
  constexpr std::size_t blocks = 4;
  std::size_t at = 0;
  for (; at + blocks * lane_count <= a.dim; at += blocks * lane_count) sum_columns<Set, format, blocks>(a, at);
  for (; at < a.dim; at += lane_count) sum_columns<Set, format, 1>(a, at);
}

template <typename Set>
void add_lanes(const AddRow& a) {
  by_format(a.format, [&]<Format format>() { add_of<Set, format>(a); });
}

template <typename Set>
void sum_rows_lanes(const SumRows& a) {
  by_format(a.format, [&]<Format format>() { sum_rows_of<Set, format>(a); });
}

// ---- panels of a matrix between their stored format and the type of arithmetic ----

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
