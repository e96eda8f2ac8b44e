// Layer normalisation, and sums over the rows of a matrix: the gradients of its parameters, and of biases.
#include <algorithm>

#include "src/cuda/cuda_layers.hpp"
#include "src/cuda/elements.cuh"

namespace tessera::nn::cuda {

// ---- sums over rows, in two stages of a fixed order: parts of the rows, each by one block, then the parts in their order,
// so that no sum depends on which block comes first ----

namespace {

constexpr unsigned sum_groups = 8;  // of a block's threads: each takes every eighth row of the part

struct RowParts {
  std::size_t count;
  std::size_t rows;  // of each; the last may have fewer
};

RowParts parts_of(std::size_t rows) {
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

template <typename T>
struct Elements {
  static constexpr std::size_t terms = 1;
  const T* from;
  std::size_t columns;

  template <std::size_t width>
  __device__ void add(std::size_t row, std::size_t column, float (&sums)[terms][width]) const {
    float values[width];
    load<width>(from + row * columns + column, values);
    for (std::size_t k = 0; k < width; ++k) sums[0][k] = sums[0][k] + values[k];
  }
};

}  // namespace

void column_sums(void* native, const ColumnSums& a) {
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    const Elements<T> elements{static_cast<const T*>(a.from), a.columns};
    sum_columns<T>(native, elements,
                   {.rows = a.rows,
                    .columns = a.columns,
                    .scratch = a.scratch,
                    .pairs = a.columns % 2 == 0 && packed<T>(a.from, 2),
                    .accumulate = a.accumulate},
                   SumTargets<T, 1>{{static_cast<T*>(a.to)}});
  });
}

std::size_t column_sums_scratch(std::size_t rows, std::size_t columns) { return parts_of(rows).count * columns; }

// ---- layer normalisation: a warp has a row, whose sums each lane forms over every 32nd pack and the warp in pairs ----

namespace {

constexpr unsigned rows_of_block = 4;

struct RowOfWarp {
  __device__ RowOfWarp() : row(static_cast<std::size_t>(blockIdx.x) * rows_of_block + threadIdx.x / warp) {}
  __device__ void next() { row += static_cast<std::size_t>(gridDim.x) * rows_of_block; }
  std::size_t row;
};

// function(i) for the lane's share of a row: packs of `width` that begin at i.
template <std::size_t width, typename Function>
__device__ inline void for_each_pack(std::size_t dim, const Function& function) {
  for (std::size_t i = threadIdx.x % warp * width; i < dim; i += warp * width) function(i);
}

template <std::size_t width, typename T>
__global__ void forward_rows(const LayerNormForwardRows a) {
  const auto dim = static_cast<float>(a.dim);
  const auto* const weight = static_cast<const T*>(a.weight);
  const auto* const bias = static_cast<const T*>(a.bias);
  for (RowOfWarp at; at.row < a.rows; at.next()) {
    const T* const x = static_cast<const T*>(a.x) + at.row * a.dim;
    T* const y = static_cast<T*>(a.y) + at.row * a.dim;
    float values[width];
    float total = 0.0f;
    for_each_pack<width>(a.dim, [&](std::size_t i) {
      load<width>(x + i, values);
      for (std::size_t k = 0; k < width; ++k) total = total + values[k];
    });
    const float mean = warp_sum(total) / dim;
    float squares = 0.0f;
    for_each_pack<width>(a.dim, [&](std::size_t i) {
      load<width>(x + i, values);
      for (std::size_t k = 0; k < width; ++k) squares = squares + (values[k] - mean) * (values[k] - mean);
    });
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / dim + static_cast<float>(a.epsilon));
    for_each_pack<width>(a.dim, [&](std::size_t i) {
      float scale[width];
      float offset[width];
      load<width>(x + i, values);
      load<width>(weight + i, scale);
      load<width>(bias + i, offset);
      for (std::size_t k = 0; k < width; ++k) values[k] = (values[k] - mean) * inverse * scale[k] + offset[k];
      store<width>(y + i, values);
    });
    if (threadIdx.x % warp == 0) {
      static_cast<float*>(a.mean)[at.row] = mean;
      static_cast<float*>(a.inverse)[at.row] = inverse;
    }
  }
}

// g = dy · weight and the normalised x of a pack.
template <std::size_t width, typename T>
struct GradientRow {
  const T* x;
  const T* dy;
  const T* weight;
  float mean;
  float inverse;

  __device__ void load_at(std::size_t i, float (&g)[width], float (&normal)[width]) const {
    float scale[width];
    load<width>(dy + i, g);
    load<width>(weight + i, scale);
    load<width>(x + i, normal);
    for (std::size_t k = 0; k < width; ++k) {
      g[k] = g[k] * scale[k];
      normal[k] = (normal[k] - mean) * inverse;
    }
  }
};

// dx = (g - mean(g) - normal · mean(g · normal)) · inverse
template <std::size_t width, typename T>
__global__ void backward_rows(const LayerNormBackwardRows a) {
  const auto dim = static_cast<float>(a.dim);
  for (RowOfWarp at; at.row < a.rows; at.next()) {
    const std::size_t first = at.row * a.dim;
    const GradientRow<width, T> row{static_cast<const T*>(a.x) + first, static_cast<const T*>(a.dy) + first,
                                    static_cast<const T*>(a.weight), static_cast<const float*>(a.mean)[at.row],
                                    static_cast<const float*>(a.inverse)[at.row]};
    float sum_g = 0.0f;
    float sum_product = 0.0f;
    float g[width];
    float normal[width];
    for_each_pack<width>(a.dim, [&](std::size_t i) {
      row.load_at(i, g, normal);
      for (std::size_t k = 0; k < width; ++k) {
        sum_g = sum_g + g[k];
        sum_product = sum_product + g[k] * normal[k];
      }
    });
    const float mean_g = warp_sum(sum_g) / dim;
    const float mean_product = warp_sum(sum_product) / dim;
    for_each_pack<width>(a.dim, [&](std::size_t i) {
      row.load_at(i, g, normal);
      float past[width] = {};
      if (a.residual != nullptr) load<width>(static_cast<const T*>(a.residual) + first + i, past);
      for (std::size_t k = 0; k < width; ++k) {
        const float gradient = (g[k] - mean_g - normal[k] * mean_product) * row.inverse;
        g[k] = a.residual == nullptr ? gradient : past[k] + gradient;
      }
      store<width>(static_cast<T*>(a.dx) + first + i, g);
    });
  }
}

// Terms of dweight and dbias.
template <typename T>
struct ParameterTerms {
  static constexpr std::size_t terms = 2;
  LayerNormBackwardRows a;

  template <std::size_t width>
  __device__ void add(std::size_t row, std::size_t column, float (&sums)[terms][width]) const {
    float x[width];
    float dy[width];
    load<width>(static_cast<const T*>(a.x) + row * a.dim + column, x);
    load<width>(static_cast<const T*>(a.dy) + row * a.dim + column, dy);
    const float mean = static_cast<const float*>(a.mean)[row];
    const float inverse = static_cast<const float*>(a.inverse)[row];
    for (std::size_t k = 0; k < width; ++k) {
      sums[0][k] = sums[0][k] + dy[k] * ((x[k] - mean) * inverse);
      sums[1][k] = sums[1][k] + dy[k];
    }
  }
};

template <typename T>
void parameter_gradients(void* native, const LayerNormBackwardRows& a, float* scratch) {
  if (a.dweight == nullptr && a.dbias == nullptr) return;
  sum_columns<T>(native, ParameterTerms<T>{a},
                 {.rows = a.rows,
                  .columns = a.dim,
                  .scratch = scratch,
                  .pairs = a.dim % 2 == 0 && packed<T>(a.x, 2) && packed<T>(a.dy, 2),
                  .accumulate = a.accumulate},
                 SumTargets<T, 2>{{static_cast<T*>(a.dweight), static_cast<T*>(a.dbias)}});
}

tessera::cuda::Launch blocks_of_rows(std::size_t rows) {
  return blocks_for(rows * warp, rows_of_block * warp);
}

// Whether rows consist of whole packs, each on its alignment.
template <typename T, typename... Pointers>
bool whole_packs(std::size_t dim, const Pointers*... pointers) {
  return dim % pack_width<T> == 0 && (packed<T>(pointers) && ...);
}

}  // namespace

void layer_norm_forward(void* native, const LayerNormForwardRows& a) {
  if (a.rows == 0) return;
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    const bool packs = whole_packs<T>(a.dim, a.x, a.weight, a.bias, a.y);
    launch(native, blocks_of_rows(a.rows), packs ? forward_rows<pack_width<T>, T> : forward_rows<1, T>, a);
  });
}

// The parameters' gradients first: dx may overwrite dy.
void layer_norm_backward(void* native, const LayerNormBackwardRows& a, float* scratch) {
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    parameter_gradients<T>(native, a, scratch);
    if (a.rows == 0) return;
    const bool packs = whole_packs<T>(a.dim, a.x, a.weight, a.dy, a.residual, a.dx);
    launch(native, blocks_of_rows(a.rows), packs ? backward_rows<pack_width<T>, T> : backward_rows<1, T>, a);
  });
}

std::size_t layer_norm_scratch(std::size_t rows, std::size_t dim) { return 2 * parts_of(rows).count * dim; }

}  // namespace tessera::nn::cuda
