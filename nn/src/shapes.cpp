// Checks that operands fit each other.
#include "src/shapes.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera::nn {

void require_shape(std::string_view what, ConstMatrixView view, std::size_t rows, std::size_t columns) {
  if (view.rows != rows || view.columns != columns) {
    throw UsageError(fmt::format("{} must be [{}, {}], but is [{}, {}]", what, rows, columns, view.rows, view.columns));
  }
}

}  // namespace tessera::nn
