// Sums over rows, in two stages of a fixed order: parts of the rows, each by one block, then the parts in their order.
// So no sum depends on which block comes first.
#pragma once

#include <algorithm>

#include "src/cuda/elements.cuh"

namespace tessera::nn::cuda {

inline constexpr unsigned sum_groups = 8;  // of a block's threads: each takes every eighth row of the part

struct RowParts {
  std::size_t count;
  std::size_t rows;  // of each; the last may have fewer
};

inline RowParts parts_of(std::size_t rows) {
  constexpr std::size_t most_parts = 128;
  constexpr std::size_t least_rows = 64;
  const std::size_t each = std::max(least_rows, (rows + most_parts - 1) / most_parts);
  return {(rows + each - 1) / each, each};
}

// `of` has `terms` and add<width>(row, column, float (&sums)[terms][width]); partial sums go to [part, term, column].
template <std::size_t width, typename Of>
__global__ void sum_parts(const Of of, std::size_t rows, std::size_t columns, std::size_t rows_of_part, float* sums) {
  __shared__ float shared[sum_groups][Of::terms][warp * width];
  const unsigned lane = threadIdx.x % warp;
  const unsigned group = threadIdx.x / warp;
  const std::size_t column = (static_cast<std::size_t>(blockIdx.x) * warp + lane) * width;
  const std::size_t first = static_cast<std::size_t>(blockIdx.y) * rows_of_part;
  const std::size_t end = first + rows_of_part < rows ? first + rows_of_part : rows;
  float own[Of::terms][width] = {};
  if (column < columns) {
#pragma unroll 4
    for (std::size_t row = first + group; row < end; row += sum_groups) of.template add<width>(row, column, own);
  }
  for (std::size_t term = 0; term < Of::terms; ++term) {
    for (std::size_t k = 0; k < width; ++k) shared[group][term][lane * width + k] = own[term][k];
  }
  __syncthreads();
  if (group != 0 || column >= columns) return;
  for (std::size_t term = 0; term < Of::terms; ++term) {
    for (std::size_t k = 0; k < width; ++k) {
      float sum = own[term][k];
      for (unsigned other = 1; other < sum_groups; ++other) sum = sum + shared[other][term][lane * width + k];
      sums[(blockIdx.y * Of::terms + term) * columns + column + k] = sum;
    }
  }
}

// Where the sums of each term go; null: not wanted.
template <typename T, std::size_t terms>
struct SumTargets {
  T* of[terms];
};

template <typename T, std::size_t terms>
__global__ void add_parts(const float* sums, std::size_t parts, std::size_t columns, const SumTargets<T, terms> to,
                          bool accumulate) {
  for (std::size_t i = thread_of_grid(); i < terms * columns; i += threads_of_grid()) {
    const std::size_t term = i / columns;
    const std::size_t column = i % columns;
    if (to.of[term] == nullptr) continue;
    float sum = accumulate ? to_float(to.of[term][column]) : 0.0f;
    for (std::size_t part = 0; part < parts; ++part) sum = sum + sums[(part * terms + term) * columns + column];
    to.of[term][column] = to_element<T>(sum);
  }
}

template <std::size_t width, typename Of>
void launch_parts(void* native, const Of& of, std::size_t rows, std::size_t columns, float* scratch) {
  const RowParts parts = parts_of(rows);
  if (parts.count == 0) return;
  const std::size_t tiles = (columns + warp * width - 1) / (warp * width);
  launch(native,
         {.blocks = dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(parts.count)),
          .threads = warp * sum_groups},
         sum_parts<width, Of>, of, rows, columns, parts.rows, scratch);
}

struct ColumnsToSum {
  std::size_t rows;
  std::size_t columns;
  float* scratch;  // a number for each part, term and column
  bool pairs;      // of.add<2> may be called for even columns
  bool accumulate;
};

template <typename T, typename Of>
void sum_columns(void* native, const Of& of, const ColumnsToSum& a, const SumTargets<T, Of::terms>& to) {
  if (a.columns == 0) return;
  if (a.pairs) launch_parts<2>(native, of, a.rows, a.columns, a.scratch);
  if (!a.pairs) launch_parts<1>(native, of, a.rows, a.columns, a.scratch);
  launch(native, blocks_for(Of::terms * a.columns, 64), add_parts<T, Of::terms>, a.scratch, parts_of(a.rows).count,
         a.columns, to, a.accumulate);
}

}  // namespace tessera::nn::cuda
