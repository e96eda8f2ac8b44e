// Some columns of a matrix as a panel in the type of arithmetic: for bf16 and fp16 converted into scratch memory, for
// float and double where they stand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "src/rows/active_rows.hpp"
#include "tessera/nn/view.hpp"

namespace tessera::nn {

template <typename T>
inline constexpr bool has_panels = !std::is_same_v<T, Arithmetic<T>>;

template <typename T>
struct Columns {
  T* data;
  std::size_t stride;  // elements from row to row
  std::size_t rows;
  std::size_t count;  // of columns
};

struct Part {
  std::size_t first_row;
  std::size_t rows;
  std::size_t first_column;
  std::size_t columns;
};

template <typename T>
Columns<T> columns_of(MatrixView<T> matrix, const Part& part) {
  return {matrix.data + part.first_row * matrix.columns + part.first_column, matrix.columns, part.rows, part.columns};
}

template <typename Real>
struct Panel {
  Real* data;
  std::size_t stride;
};

// Where to calculate what belongs into `columns`: there, or in `room` [rows, count].
template <typename T>
Panel<Arithmetic<T>> panel_for(const Columns<T>& columns, Arithmetic<T>* room) {
  if constexpr (has_panels<T>) return {room, columns.count};
  if constexpr (!has_panels<T>) return {columns.data, columns.stride};
}

template <typename T>
Panel<const Arithmetic<T>> load_panel(const RowTable& run, const Columns<const T>& from, Arithmetic<T>* room) {
  if constexpr (has_panels<T>) {
    run.load_panel({.format = format_of<T>,
                    .from = from.data,
                    .from_stride = from.stride,
                    .to = room,
                    .to_stride = from.count,
                    .rows = from.rows,
                    .columns = from.count});
    return {room, from.count};
  } else {
    return {from.data, from.stride};
  }
}

// Stores a panel where it belongs, each row multiplied by its factor; `factors` may be null.
template <typename T>
void store_panel(const RowTable& run, Panel<Arithmetic<T>> from, const Columns<T>& to, const Arithmetic<T>* factors) {
  run.store_panel({.format = format_of<T>,
                   .from = from.data,
                   .from_stride = from.stride,
                   .to = to.data,
                   .to_stride = to.stride,
                   .rows = to.rows,
                   .columns = to.count,
                   .factors = factors});
}

template <typename Real>
void fill_zero(Panel<Real> panel, std::size_t rows, std::size_t columns) {
  for (std::size_t row = 0; row < rows; ++row) std::fill_n(panel.data + row * panel.stride, columns, Real{});
}

}  // namespace tessera::nn
