// Checks that operands fit each other, with both shapes in the error.
#pragma once

#include <cstddef>
#include <string_view>

#include "tessera/nn/view.hpp"

namespace tessera::nn {

struct Extents {
  std::size_t rows;
  std::size_t columns;
};

// Throws UsageError unless they are [rows, columns].
void require_extents(std::string_view what, Extents extents, std::size_t rows, std::size_t columns);

template <typename T>
void require_shape(std::string_view what, MatrixView<T> view, std::size_t rows, std::size_t columns) {
  require_extents(what, {view.rows, view.columns}, rows, columns);
}

}  // namespace tessera::nn
