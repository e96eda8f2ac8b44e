// Token and position embeddings. The gradient of a token's row is a sum over its rows in their order: they are sorted by
// id first, each to the place that the earlier rows of the same id leave it, so that no sum depends on timing.
#include <algorithm>
#include <cmath>

#include "src/cuda/cuda_layers.hpp"
#include "src/cuda/elements.cuh"

namespace tessera::nn::cuda {

namespace {

constexpr unsigned scan_threads = 1024;
constexpr unsigned place_threads = 256;

// Of a kernel that has a row of a table per block.
constexpr std::size_t most_blocks = 65535;

__device__ inline bool id_fits(const std::int32_t* ids, std::size_t row, std::size_t vocabulary) {
  return ids[row] >= 0 && static_cast<std::size_t>(ids[row]) < vocabulary;
}

template <typename T>
__global__ void look_up(const EmbeddingForwardRows a) {
  const auto* const table = static_cast<const T*>(a.table);
  const auto* const positions = static_cast<const T*>(a.positions);
  for (std::size_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const bool fits = id_fits(a.ids, row, a.vocabulary);
    const T* const token = table + (fits ? static_cast<std::size_t>(a.ids[row]) : 0) * a.dim;
    const T* const position =
        positions == nullptr ? nullptr : positions + (a.first_position + row % a.sequence) * a.dim;
    T* const y = static_cast<T*>(a.y) + row * a.dim;
    for (std::size_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
      if (!fits) {
        y[i] = to_element<T>(NAN);
      } else {
        y[i] = position == nullptr ? token[i] : to_element<T>(to_float(token[i]) + to_float(position[i]));
      }
    }
  }
}

__global__ void clear_counts(std::int32_t* starts, std::size_t count) {
  for (std::size_t i = thread_of_grid(); i < count; i += threads_of_grid()) starts[i] = 0;
}

// starts[id] becomes the number of rows with that id. Integers: no order of additions shows.
__global__ void count_ids(const EmbeddingBackwardRows a) {
  for (std::size_t row = thread_of_grid(); row < a.rows; row += threads_of_grid()) {
    if (id_fits(a.ids, row, a.vocabulary)) atomicAdd(&a.scratch[a.ids[row]], 1);
  }
}

// From numbers of rows to where the rows of an id begin: one block, each thread a run of ids.
__global__ void sum_counts(std::int32_t* starts, std::size_t vocabulary) {
  __shared__ std::int32_t sums[scan_threads];
  const std::size_t run = (vocabulary + scan_threads - 1) / scan_threads;
  const std::size_t first = threadIdx.x * run < vocabulary ? threadIdx.x * run : vocabulary;
  const std::size_t end = first + run < vocabulary ? first + run : vocabulary;
  std::int32_t own = 0;
  for (std::size_t id = first; id < end; ++id) own += starts[id];
  sums[threadIdx.x] = own;
  __syncthreads();
  for (unsigned distance = 1; distance < scan_threads; distance *= 2) {
    const std::int32_t before = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  std::int32_t next = sums[threadIdx.x] - own;
  for (std::size_t id = first; id < end; ++id) {
    const std::int32_t count = starts[id];
    starts[id] = next;
    next += count;
  }
  if (threadIdx.x == scan_threads - 1) starts[vocabulary] = sums[threadIdx.x];
}

// Row r goes behind the earlier rows of its id, which every thread counts for its own row.
__global__ void place_rows(const EmbeddingBackwardRows a) {
  __shared__ std::int32_t near[place_threads];
  std::int32_t* const row_of = a.scratch + a.vocabulary + 1;
  const std::size_t row = thread_of_grid();
  const std::int32_t own = row < a.rows ? a.ids[row] : -1;
  const std::size_t end = (static_cast<std::size_t>(blockIdx.x) + 1) * place_threads;
  std::int32_t before = 0;
  for (std::size_t first = 0; first < end; first += place_threads) {
    near[threadIdx.x] = first + threadIdx.x < a.rows ? a.ids[first + threadIdx.x] : -1;
    __syncthreads();
    const std::size_t here = row - first < place_threads ? row - first : place_threads;
    if (here == place_threads) {
#pragma unroll 16
      for (std::size_t k = 0; k < place_threads; ++k) before += near[k] == own ? 1 : 0;
    } else {
      for (std::size_t k = 0; k < here; ++k) before += near[k] == own ? 1 : 0;
    }
    __syncthreads();
  }
  if (row < a.rows && id_fits(a.ids, row, a.vocabulary)) {
    row_of[a.scratch[own] + before] = static_cast<std::int32_t>(row);
  }
}

template <typename T>
__global__ void sum_tokens(const EmbeddingBackwardRows a) {
  const auto* const dy = static_cast<const T*>(a.dy);
  const std::int32_t* const row_of = a.scratch + a.vocabulary + 1;
  for (std::size_t id = blockIdx.x; id < a.vocabulary; id += gridDim.x) {
    T* const to = static_cast<T*>(a.dtable) + id * a.dim;
    const std::int32_t first = a.scratch[id];
    const std::int32_t end = a.scratch[id + 1];
    if (first == end && a.accumulate) continue;
    for (std::size_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
      float sum = a.accumulate ? to_float(to[i]) : 0.0f;
#pragma unroll 8
      for (std::int32_t at = first; at < end; ++at) {
        sum = sum + to_float(dy[static_cast<std::size_t>(row_of[at]) * a.dim + i]);
      }
      to[i] = to_element<T>(sum);
    }
  }
}

template <typename T>
__global__ void sum_positions(const EmbeddingBackwardRows a) {
  const auto* const dy = static_cast<const T*>(a.dy);
  for (std::size_t position = blockIdx.x; position < a.context; position += gridDim.x) {
    T* const to = static_cast<T*>(a.dpositions) + position * a.dim;
    const bool used = position >= a.first_position && position < a.first_position + a.sequence;
    for (std::size_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
      float sum = a.accumulate ? to_float(to[i]) : 0.0f;
      for (std::size_t row = position - a.first_position; used && row < a.rows; row += a.sequence) {
        sum = sum + to_float(dy[row * a.dim + i]);
      }
      to[i] = to_element<T>(sum);
    }
  }
}

tessera::cuda::Launch blocks_of_rows(std::size_t rows, std::size_t dim) {
  return {.blocks = dim3(static_cast<unsigned>(std::min(rows, most_blocks))),
          .threads = static_cast<unsigned>(std::clamp<std::size_t>((dim + warp - 1) / warp * warp, warp, 256))};
}

void sort_rows(void* native, const EmbeddingBackwardRows& a) {
  launch(native, blocks_for(a.vocabulary + 1), clear_counts, a.scratch, a.vocabulary + 1);
  if (a.rows > 0) launch(native, blocks_for(a.rows), count_ids, a);
  launch(native, {.threads = scan_threads}, sum_counts, a.scratch, a.vocabulary);
  if (a.rows > 0) {
    const auto blocks = static_cast<unsigned>((a.rows + place_threads - 1) / place_threads);
    launch(native, {.blocks = dim3(blocks), .threads = place_threads}, place_rows, a);
  }
}

}  // namespace

void embedding_forward(void* native, const EmbeddingForwardRows& a) {
  if (a.rows == 0) return;
  for_element(a.format, [&](auto type) {
    launch(native, blocks_of_rows(a.rows, a.dim), look_up<typename decltype(type)::Element>, a);
  });
}

void embedding_backward(void* native, const EmbeddingBackwardRows& a) {
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    if (a.dtable != nullptr && a.vocabulary > 0) {
      sort_rows(native, a);
      launch(native, blocks_of_rows(a.vocabulary, a.dim), sum_tokens<T>, a);
    }
    if (a.dpositions != nullptr && a.context > 0) {
      launch(native, blocks_of_rows(a.context, a.dim), sum_positions<T>, a);
    }
  });
}

}  // namespace tessera::nn::cuda
