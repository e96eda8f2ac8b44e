// Sums over the rows of a matrix in two stages of a fixed order: parts of the rows, each by a block for every 32 columns or
// pairs of them, then the parts in their order. So no sum depends on which block comes first, but on the extents alone.
#pragma once

#include "src/cuda/elements.cuh"
#include "src/cuda/row_parts.hpp"

namespace tessera::nn::cuda {

inline constexpr unsigned row_groups = 8;  // of a block's threads: each takes every eighth row of the part

template <std::size_t width>
tessera::cuda::Launch blocks_of_parts(const RowParts& parts, std::size_t columns) {
  const std::size_t tiles = (columns + warp * width - 1) / (warp * width);
  return {.blocks = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(parts.count)),
          .threads = warp * row_groups};
}

// A thread's part of the work: `width` columns, and of the rows first … end - 1 every eighth from first + group on.
template <std::size_t width>
struct PlaceInPart {
  unsigned lane;
  unsigned group;
  std::size_t column;
  std::size_t first;
  std::size_t end;

  __device__ PlaceInPart(std::size_t rows, std::size_t rows_of_part)
      : lane(threadIdx.x % warp),
        group(threadIdx.x / warp),
        column((static_cast<std::size_t>(blockIdx.x) * warp + lane) * width),
        first(static_cast<std::size_t>(blockIdx.y) * rows_of_part),
        end(first + rows_of_part < rows ? first + rows_of_part : rows) {}
};

// The sums of all groups of the block, in their order, to `sums`: [part, term, column]. All threads call it.
template <std::size_t width, std::size_t terms, typename Sum>
__device__ void store_sums_of_part(const PlaceInPart<width>& at, const Sum (&own)[terms][width], std::size_t columns,
                                   Sum* sums) {
  __shared__ Sum shared[row_groups][terms][warp * width];
  for (std::size_t term = 0; term < terms; ++term) {
    for (std::size_t k = 0; k < width; ++k) shared[at.group][term][at.lane * width + k] = own[term][k];
  }
  __syncthreads();
  if (at.group != 0 || at.column >= columns) return;
  for (std::size_t term = 0; term < terms; ++term) {
    for (std::size_t k = 0; k < width; ++k) {
      Sum sum = own[term][k];
      for (unsigned other = 1; other < row_groups; ++other) sum = sum + shared[other][term][at.lane * width + k];
      sums[(blockIdx.y * terms + term) * columns + at.column + k] = sum;
    }
  }
}

}  // namespace tessera::nn::cuda
