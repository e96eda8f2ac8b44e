// Checks that operands fit each other, with both shapes in the error.
#pragma once

#include <cstddef>
#include <string_view>

#include "tessera/nn/matrix.hpp"

namespace tessera::nn {

// Throws UsageError unless `view` has this shape.
void require_shape(std::string_view what, ConstMatrixView view, std::size_t rows, std::size_t columns);

}  // namespace tessera::nn
