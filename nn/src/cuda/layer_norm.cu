// Layer normalisation, and sums over the rows of a matrix: the gradients of its parameters, and of biases.
#include "src/cuda/cuda_layers.hpp"
#include "src/cuda/row_parts.cuh"

namespace tessera::nn::cuda {

// ---- sums over rows ----

namespace {

// `of` has `terms` and add<width>(row, column, float (&sums)[terms][width]); partial sums go to [part, term, column].
template <std::size_t width, typename Of>
__global__ void sum_parts(const Of of, std::size_t rows, std::size_t columns, std::size_t rows_of_part, float* sums) {
  const PlaceInPart<width> at(rows, rows_of_part);
  float own[Of::terms][width] = {};
  if (at.column < columns) {
#pragma unroll 4
    for (std::size_t row = at.first + at.group; row < at.end; row += row_groups) {
      of.template add<width>(row, at.column, own);
    }
  }
  store_sums_of_part(at, own, columns, sums);
}

// Where the sums of each term go; null: not wanted.
template <typename T, std::size_t terms>
struct SumTargets {
  T* of[terms];
};

// A block adds up 32 columns of `sums`, which is [part, term · column]: each warp every eighth part, then the warps' sums
// in their order.
template <typename T, std::size_t terms>
__global__ void add_parts(const float* sums, std::size_t parts, std::size_t columns, const SumTargets<T, terms> to,
                          bool accumulate) {
  __shared__ float of_group[row_groups][warp];
  const unsigned group = threadIdx.x / warp;
  const unsigned lane = threadIdx.x % warp;
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * warp + lane;
  float own = 0.0f;
  if (i < terms * columns) {
#pragma unroll 4
    for (std::size_t part = group; part < parts; part += row_groups) own = own + sums[part * terms * columns + i];
  }
  of_group[group][lane] = own;
  __syncthreads();
  if (group != 0 || i >= terms * columns) return;
  T* target = to.of[0];  // by constant indices: others would bring the array into local memory
  std::size_t column = i;
#pragma unroll
  for (std::size_t term = 1; term < terms; ++term) {
    if (i >= term * columns) target = to.of[term], column = i - term * columns;
  }
  if (target == nullptr) return;
  for (unsigned other = 1; other < row_groups; ++other) own = own + of_group[other][lane];
  T& place = target[column];
  place = to_element<T>(accumulate ? to_float(place) + own : own);
}

template <typename T, std::size_t terms>
void launch_add_parts(void* native, const float* sums, std::size_t parts, std::size_t columns,
                      const SumTargets<T, terms>& to, bool accumulate) {
  const auto blocks = static_cast<unsigned>((terms * columns + warp - 1) / warp);
  launch(native, {.blocks = dim3(blocks), .threads = warp * row_groups}, add_parts<T, terms>, sums, parts, columns, to,
         accumulate);
}

template <std::size_t width, typename Of>
void launch_parts(void* native, const Of& of, std::size_t rows, std::size_t columns, float* scratch) {
  const RowParts parts = parts_of(rows);
  if (parts.count == 0) return;
  launch(native, blocks_of_parts<width>(parts, columns), sum_parts<width, Of>, of, rows, columns, parts.rows, scratch);
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
  launch_add_parts(native, a.scratch, parts_of(a.rows).count, a.columns, to, a.accumulate);
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

// ---- layer normalisation: a warp has a row, whose sums each lane forms over every 32nd pack and the warp in pairs. The row
// is read once and stays in registers; one that is too long for that is read again ----

namespace {

constexpr unsigned rows_of_block = 4;
constexpr std::size_t most_packs_with_sums = 7;  // of a lane: registers hold so many, and their sums

struct RowOfWarp {
  __device__ RowOfWarp() : row(static_cast<std::size_t>(blockIdx.x) * rows_of_block + threadIdx.x / warp) {}
  __device__ void next() { row += static_cast<std::size_t>(gridDim.x) * rows_of_block; }
  std::size_t row;
};

// function(p, i) for the lane's packs of `width` elements: number p begins at i of the row. `packs`: the most that a row
// has, or 0, whatever it has.
template <std::size_t width, std::size_t packs, typename Function>
__device__ inline void for_each_pack(std::size_t dim, const Function& function) {
  const std::size_t first = threadIdx.x % warp * width;
  if constexpr (packs == 0) {
    for (std::size_t i = first; i < dim; i += warp * width) function(0, i);
  } else {
#pragma unroll
    for (std::size_t p = 0; p < packs; ++p) {
      if (first + p * warp * width < dim) function(p, first + p * warp * width);
    }
  }
}

// The lane's packs of a row.
template <std::size_t width, std::size_t packs, typename T>
struct Row {
  const T* from;
  Pack<T, width> kept[packs == 0 ? 1 : packs];

  __device__ Row(const T* row, std::size_t dim) : from(row) {
    if constexpr (packs != 0) {
      for_each_pack<width, packs>(dim, [&](std::size_t p, std::size_t i) {
        kept[p] = *reinterpret_cast<const Pack<T, width>*>(from + i);
      });
    }
  }
  __device__ void get(std::size_t p, std::size_t i, float (&values)[width]) const {
    if constexpr (packs == 0) {
      load<width>(from + i, values);
    } else {
#pragma unroll
      for (std::size_t k = 0; k < width; ++k) values[k] = to_float(kept[p].element[k]);
    }
  }
};

template <std::size_t width, std::size_t packs, typename T>
__global__ void forward_rows(const LayerNormForwardRows a) {
  const auto dim = static_cast<float>(a.dim);
  const auto* const weight = static_cast<const T*>(a.weight);
  const auto* const bias = static_cast<const T*>(a.bias);
  for (RowOfWarp at; at.row < a.rows; at.next()) {
    const Row<width, packs, T> x(static_cast<const T*>(a.x) + at.row * a.dim, a.dim);
    T* const y = static_cast<T*>(a.y) + at.row * a.dim;
    float values[width];
    float total = 0.0f;
    for_each_pack<width, packs>(a.dim, [&](std::size_t p, std::size_t i) {
      x.get(p, i, values);
      for (std::size_t k = 0; k < width; ++k) total = total + values[k];
    });
    const float mean = warp_sum(total) / dim;
    float squares = 0.0f;
    for_each_pack<width, packs>(a.dim, [&](std::size_t p, std::size_t i) {
      x.get(p, i, values);
      for (std::size_t k = 0; k < width; ++k) squares = squares + (values[k] - mean) * (values[k] - mean);
    });
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / dim + static_cast<float>(a.epsilon));
    for_each_pack<width, packs>(a.dim, [&](std::size_t p, std::size_t i) {
      float scale[width];
      float offset[width];
      x.get(p, i, values);
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

// dx = (g - mean(g) - normal · mean(g · normal)) · inverse of one row, with g = dy · weight and normal the normalised x.
// visit(p, dy, normal) sees each pack on the way.
template <std::size_t width, std::size_t packs, typename T, typename Visit>
__device__ void backward_row(const LayerNormBackwardRows& a, std::size_t row, const Visit& visit) {
  const auto dim = static_cast<float>(a.dim);
  const std::size_t first = row * a.dim;
  const Row<width, packs, T> x(static_cast<const T*>(a.x) + first, a.dim);
  const Row<width, packs, T> dy(static_cast<const T*>(a.dy) + first, a.dim);
  const auto* const weight = static_cast<const T*>(a.weight);
  const float mean = static_cast<const float*>(a.mean)[row];
  const float inverse = static_cast<const float*>(a.inverse)[row];
  float sum_g = 0.0f;
  float sum_product = 0.0f;
  float g[width];
  float normal[width];
  float scale[width];
  const auto form = [&](std::size_t p, std::size_t i, const auto& see) {
    dy.get(p, i, g);
    x.get(p, i, normal);
    load<width>(weight + i, scale);
    for (std::size_t k = 0; k < width; ++k) normal[k] = (normal[k] - mean) * inverse;
    see(p, g, normal);
    // Rounded here, and not within what takes the mean from it: the gradient of a row of one element is 0.
    for (std::size_t k = 0; k < width; ++k) g[k] = __fmul_rn(g[k], scale[k]);
  };
  for_each_pack<width, packs>(a.dim, [&](std::size_t p, std::size_t i) {
    form(p, i, visit);
    for (std::size_t k = 0; k < width; ++k) {
      sum_g = sum_g + g[k];
      sum_product = sum_product + g[k] * normal[k];
    }
  });
  const float mean_g = warp_sum(sum_g) / dim;
  const float mean_product = warp_sum(sum_product) / dim;
  for_each_pack<width, packs>(a.dim, [&](std::size_t p, std::size_t i) {
    form(p, i, [](std::size_t, const float(&)[width], const float(&)[width]) {});
    float past[width] = {};
    if (a.residual != nullptr) load<width>(static_cast<const T*>(a.residual) + first + i, past);
    for (std::size_t k = 0; k < width; ++k) {
      const float gradient = (g[k] - mean_g - normal[k] * mean_product) * inverse;
      g[k] = a.residual == nullptr ? gradient : past[k] + gradient;
    }
    store<width>(static_cast<T*>(a.dx) + first + i, g);
  });
}

template <std::size_t width, std::size_t packs, typename T>
__global__ void backward_rows(const LayerNormBackwardRows a) {
  for (RowOfWarp at; at.row < a.rows; at.next()) {
    backward_row<width, packs, T>(a, at.row, [](std::size_t, const float(&)[width], const float(&)[width]) {});
  }
}

// This is backward_rows() with the sums for the parameters' gradients of the rows that pass by: a block has a part of
// the rows, each warp of it every eighth. Partial sums go to [part, term, column], as those of sum_parts().
template <std::size_t width, std::size_t packs, typename T>
__global__ void __launch_bounds__(warp * row_groups)
    backward_rows_and_sums(const LayerNormBackwardRows a, std::size_t rows_of_part, float* sums) {
  constexpr unsigned columns = warp * width;
  __shared__ float of_group[row_groups][columns];
  const unsigned group = threadIdx.x / warp;
  const unsigned lane = threadIdx.x % warp;
  const std::size_t first = blockIdx.x * rows_of_part;
  const std::size_t end = first + rows_of_part < a.rows ? first + rows_of_part : a.rows;
  float own[2][packs][width] = {};  // of weight and bias
  for (std::size_t row = first + group; row < end; row += row_groups) {
    backward_row<width, packs, T>(a, row, [&](std::size_t p, const float(&dy)[width], const float(&normal)[width]) {
      for (std::size_t k = 0; k < width; ++k) {
        own[0][p][k] = own[0][p][k] + dy[k] * normal[k];
        own[1][p][k] = own[1][p][k] + dy[k];
      }
    });
  }
#pragma unroll
  for (unsigned term = 0; term < 2; ++term) {
#pragma unroll
    for (std::size_t p = 0; p < packs; ++p) {
      __syncthreads();
      for (std::size_t k = 0; k < width; ++k) of_group[group][lane * width + k] = own[term][p][k];
      __syncthreads();
      const std::size_t column = p * columns + threadIdx.x;
      if (threadIdx.x >= columns || column >= a.dim) continue;
      float sum = of_group[0][threadIdx.x];
      for (unsigned other = 1; other < row_groups; ++other) sum = sum + of_group[other][threadIdx.x];
      sums[(blockIdx.x * std::size_t{2} + term) * a.dim + column] = sum;
    }
  }
}

// Terms of dweight and dbias, where they do not ride on the pass for dx.
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

template <std::size_t value>
struct Packs {
  static constexpr std::size_t count = value;
};

// function(Packs<…>{}) for what a lane has of a row of `dim` elements; 0: more than its registers hold.
template <typename T, typename Function>
void for_packs(std::size_t dim, const Function& function) {
  constexpr std::size_t of_warp = warp * pack_width<T>;
  if (dim <= 4 * of_warp) return function(Packs<4>{});
  if (dim <= 7 * of_warp) return function(Packs<7>{});
  if (dim <= 8 * of_warp) return function(Packs<8>{});
  function(Packs<0>{});
}

// All gradients, where rows consist of whole packs.
template <typename T>
void backward_of_packs(void* native, const LayerNormBackwardRows& a, float* scratch) {
  constexpr std::size_t width = pack_width<T>;
  const bool wants_sums = a.dweight != nullptr || a.dbias != nullptr;
  for_packs<T>(a.dim, [&](auto of_lane) {
    constexpr std::size_t packs = decltype(of_lane)::count;
    if constexpr (packs != 0 && packs <= most_packs_with_sums) {
      if (wants_sums) {
        const RowParts parts = parts_of(a.rows);
        launch(native, {.blocks = dim3(static_cast<unsigned>(parts.count)), .threads = warp * row_groups},
               backward_rows_and_sums<width, packs, T>, a, parts.rows, scratch);
        return launch_add_parts(native, scratch, parts.count, a.dim,
                                SumTargets<T, 2>{{static_cast<T*>(a.dweight), static_cast<T*>(a.dbias)}}, a.accumulate);
      }
    } else if (wants_sums) {
      parameter_gradients<T>(native, a, scratch);
    }
    launch(native, blocks_of_rows(a.rows), backward_rows<width, packs, T>, a);
  });
}

}  // namespace

void layer_norm_forward(void* native, const LayerNormForwardRows& a) {
  if (a.rows == 0) return;
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    if (!whole_packs<T>(a.dim, a.x, a.weight, a.bias, a.y)) {
      return launch(native, blocks_of_rows(a.rows), forward_rows<1, 0, T>, a);
    }
    for_packs<T>(a.dim, [&](auto of_lane) {
      launch(native, blocks_of_rows(a.rows), forward_rows<pack_width<T>, decltype(of_lane)::count, T>, a);
    });
  });
}

// The parameters' gradients first where they do not ride along: dx may overwrite dy.
void layer_norm_backward(void* native, const LayerNormBackwardRows& a, float* scratch) {
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    if (a.rows > 0 && whole_packs<T>(a.dim, a.x, a.weight, a.dy, a.residual, a.dx)) {
      return backward_of_packs<T>(native, a, scratch);
    }
    if (a.dweight != nullptr || a.dbias != nullptr) parameter_gradients<T>(native, a, scratch);
    if (a.rows > 0) launch(native, blocks_of_rows(a.rows), backward_rows<1, 0, T>, a);
  });
}

std::size_t layer_norm_scratch(std::size_t rows, std::size_t dim) { return 2 * parts_of(rows).count * dim; }

}  // namespace tessera::nn::cuda
