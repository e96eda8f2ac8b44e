// Checks that operands fit each other.
#include "src/shapes.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera::nn {

void require_extents(std::string_view what, Extents extents, std::size_t rows, std::size_t columns) {
  if (extents.rows != rows || extents.columns != columns) {
    throw UsageError(
        fmt::format("{} must be [{}, {}], but is [{}, {}]", what, rows, columns, extents.rows, extents.columns));
  }
}

}  // namespace tessera::nn
