// Layer normalisation: a warp has a row, whose sums each lane forms over every 32nd pack and the warp in pairs. The
// parameters' gradients are sums over rows in parts (column_sums.cuh).
#include "src/cuda/column_sums.cuh"
#include "src/cuda/cuda_layers.hpp"

namespace tessera::nn::cuda {

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
