// Into which parts the rows of a matrix are cut whose sums a CUDA device forms in two stages: by formula, so that any
// build knows what scratch memory they take.
#pragma once

#include <algorithm>
#include <cstddef>

namespace tessera::nn::cuda {

struct RowParts {
  std::size_t count;
  std::size_t rows;  // of each; the last may have fewer
};

constexpr RowParts parts_of_rows(std::size_t rows, std::size_t most_parts) {
  constexpr std::size_t least_rows = 64;
  const std::size_t each = std::max(least_rows, (rows + most_parts - 1) / most_parts);
  return {(rows + each - 1) / each, each};
}

// Those of layers' parameters.
constexpr RowParts parts_of(std::size_t rows) { return parts_of_rows(rows, 128); }

}  // namespace tessera::nn::cuda
