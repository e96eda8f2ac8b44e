// Views of row-major matrices: what layers pass to each other. They own nothing.
#pragma once

#include <cstddef>
#include <type_traits>

#pragma GCC visibility push(default)

namespace tessera::nn {

// rows × columns elements, rows following each other without gaps, in the memory of the stream's device. T is float,
// bf16, fp16, or double (which gradient checks use), const for what is only read.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;

  std::size_t elements() const { return rows * columns; }
  // `count` rows, from this one on. Without data, as in a pass that counts, it has none either.
  MatrixView from_row(std::size_t first, std::size_t count) const {
    return {data == nullptr ? nullptr : data + first * columns, count, columns};
  }

  // A view of T becomes one of const T, like a span.
  operator MatrixView<const T>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {data, rows, columns};
  }
};

// Where a layer's result goes: to = result, or with `plus`, which is as large and overlaps nothing, to = plus + result.
template <typename T>
struct Target {
  Target(MatrixView<T> view, MatrixView<const T> residual = {})  // NOLINT(google-explicit-constructor): mostly a view
      : to(view), plus(residual) {}

  MatrixView<T> to;
  MatrixView<const T> plus;
};

// So that templates find T: MatrixView<std::type_identity_t<const T>> takes both.
template <typename T>
using ConstMatrixView = MatrixView<const std::type_identity_t<T>>;

}  // namespace tessera::nn

#pragma GCC visibility pop
