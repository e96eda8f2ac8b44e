// Token and position embeddings. The gradient of a token's row is a sum over its rows in their order: they are sorted by
// id first, by digits and stably, so that no sum depends on timing and the work grows with the rows alone.
#include <algorithm>
#include <cmath>

#include "src/cuda/cuda_layers.hpp"
#include "src/cuda/elements.cuh"

namespace tessera::nn::cuda {

namespace {

constexpr unsigned scan_threads = 1024;

// A kernel that has a row of a table per block has at most so many blocks.
constexpr std::size_t most_blocks = 65535;

// Where a row's id stands in the table; beyond it where that is none of its ids.
template <typename Rows>
__device__ inline std::size_t id_of(const Rows& a, std::size_t row) {
  return static_cast<std::size_t>(static_cast<std::int64_t>(a.ids[row])) - a.first_id;
}

template <typename T>
__global__ void look_up(const EmbeddingForwardRows a) {
  const auto* const table = static_cast<const T*>(a.table);
  const auto* const positions = static_cast<const T*>(a.positions);
  for (std::size_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const std::size_t id = id_of(a, row);
    const bool fits = id < a.vocabulary;
    const bool is_anothers = static_cast<std::size_t>(static_cast<std::int64_t>(a.ids[row])) < a.all_ids;
    const T* const token = table + (fits ? id : 0) * a.dim;
    const T* const position =
        positions == nullptr ? nullptr : positions + (a.first_position + row % a.sequence) * a.dim;
    T* const y = static_cast<T*>(a.y) + row * a.dim;
    for (std::size_t i = threadIdx.x; i < a.dim; i += blockDim.x) {
      if (!fits) {
        const T none = to_element<T>(is_anothers ? 0.0f : NAN);
        y[i] = is_anothers && position != nullptr ? position[i] : none;
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
    if (const std::size_t id = id_of(a, row); id < a.vocabulary) atomicAdd(&a.scratch[id], 1);
  }
}

// From `count` numbers of rows to where each kind of rows begins, and behind them their sum: one block, each thread a run.
__global__ void sum_counts(std::int32_t* starts, std::size_t count) {
  __shared__ std::int32_t sums[scan_threads];
  const std::size_t run = (count + scan_threads - 1) / scan_threads;
  const std::size_t first = threadIdx.x * run < count ? threadIdx.x * run : count;
  const std::size_t end = first + run < count ? first + run : count;
  std::int32_t own = 0;
  for (std::size_t i = first; i < end; ++i) own += starts[i];
  sums[threadIdx.x] = own;
  __syncthreads();
  for (unsigned distance = 1; distance < scan_threads; distance *= 2) {
    const std::int32_t before = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  std::int32_t next = sums[threadIdx.x] - own;
  for (std::size_t i = first; i < end; ++i) {
    const std::int32_t here = starts[i];
    starts[i] = next;
    next += here;
  }
  if (threadIdx.x == scan_threads - 1) starts[count] = sums[threadIdx.x];
}

// One digit of a stable sort of rows by id, the lowest first. A block has a tile of the order so far.
struct DigitPass {
  const std::int32_t* from;  // rows in their order so far; null: as they stand
  std::int32_t* to;
  std::int32_t* places;  // [embedding_digits, tiles] and one more: rows of each digit and tile, then where they go
  unsigned first_bit;
};

// Ids that are none of the table's come last.
__device__ inline unsigned digit_of(const EmbeddingBackwardRows& a, const DigitPass& pass, std::int32_t row) {
  const std::size_t own = id_of(a, static_cast<std::size_t>(row));
  const std::size_t id = own < a.vocabulary ? own : a.vocabulary;
  return static_cast<unsigned>(id >> pass.first_bit & (embedding_digits - 1));
}

__device__ inline std::int32_t row_at(const DigitPass& pass, std::size_t place) {
  return pass.from == nullptr ? static_cast<std::int32_t>(place) : pass.from[place];
}

__global__ void count_digits(const EmbeddingBackwardRows a, const DigitPass pass) {
  __shared__ std::int32_t counts[embedding_digits];
  if (threadIdx.x < embedding_digits) counts[threadIdx.x] = 0;
  __syncthreads();
  const std::size_t place = thread_of_grid();
  if (place < a.rows) atomicAdd(&counts[digit_of(a, pass, row_at(pass, place))], 1);
  __syncthreads();
  if (threadIdx.x < embedding_digits) {
    pass.places[static_cast<std::size_t>(threadIdx.x) * gridDim.x + blockIdx.x] = counts[threadIdx.x];
  }
}

// A row goes behind the rows of its digit in earlier tiles, in earlier warps of its own tile, and in earlier lanes of its
// own warp.
__global__ void place_rows(const EmbeddingBackwardRows a, const DigitPass pass) {
  constexpr unsigned warps = embedding_tile / warp;
  __shared__ std::uint16_t before[warps][embedding_digits];
  const std::size_t place = thread_of_grid();
  const unsigned own_warp = threadIdx.x / warp;
  const unsigned lane = threadIdx.x % warp;
  const std::int32_t row = place < a.rows ? row_at(pass, place) : 0;
  const unsigned digit = place < a.rows ? digit_of(a, pass, row) : embedding_digits;
  for (unsigned i = lane; i < embedding_digits; i += warp) before[own_warp][i] = 0;
  __syncwarp();
  const unsigned equals = __match_any_sync(whole_warp, digit);
  const auto earlier = static_cast<unsigned>(__popc(equals & ((1u << lane) - 1)));
  if (earlier == 0 && place < a.rows) before[own_warp][digit] = static_cast<std::uint16_t>(__popc(equals));
  __syncthreads();
  if (threadIdx.x < embedding_digits) {
    unsigned sum = 0;
    for (auto& of_warp : before) {
      const unsigned here = of_warp[threadIdx.x];
      of_warp[threadIdx.x] = static_cast<std::uint16_t>(sum);
      sum += here;
    }
  }
  __syncthreads();
  if (place >= a.rows) return;
  const std::int32_t first = pass.places[static_cast<std::size_t>(digit) * gridDim.x + blockIdx.x];
  pass.to[first + static_cast<std::int32_t>(before[own_warp][digit] + earlier)] = row;
}

constexpr unsigned ids_of_block = 8;

// A warp has an id, each lane of it a pack of columns. One id may have most rows, as the blank has in a text of bytes:
// many are under way at a time, though they are added in their order.
template <typename T, std::size_t width>
__global__ void sum_tokens(const EmbeddingBackwardRows a, const std::int32_t* row_of) {
  constexpr std::int32_t at_a_time = 16;
  const auto* const dy = static_cast<const T*>(a.dy);
  const std::size_t column = (static_cast<std::size_t>(blockIdx.y) * warp + threadIdx.x % warp) * width;
  if (column >= a.dim) return;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * ids_of_block;
  for (std::size_t id = blockIdx.x * ids_of_block + threadIdx.x / warp; id < a.vocabulary; id += step) {
    T* const to = static_cast<T*>(a.dtable) + id * a.dim + column;
    const std::int32_t end = a.scratch[id + 1];
    std::int32_t at = a.scratch[id];
    if (at == end && a.accumulate) continue;
    float sum[width] = {};
    if (a.accumulate) load<width>(to, sum);
    const auto row = [&](std::int32_t i) { return dy + static_cast<std::size_t>(row_of[i]) * a.dim + column; };
    for (; at + at_a_time <= end; at += at_a_time) {
      Pack<T, width> rows[at_a_time];
#pragma unroll
      for (std::int32_t i = 0; i < at_a_time; ++i) rows[i] = *reinterpret_cast<const Pack<T, width>*>(row(at + i));
#pragma unroll
      for (std::int32_t i = 0; i < at_a_time; ++i) {
        for (std::size_t k = 0; k < width; ++k) sum[k] = sum[k] + to_float(rows[i].element[k]);
      }
    }
    for (; at < end; ++at) {
      float values[width];
      load<width>(row(at), values);
      for (std::size_t k = 0; k < width; ++k) sum[k] = sum[k] + values[k];
    }
    store<width>(to, sum);
  }
}

template <typename T, std::size_t width>
void launch_sum_tokens(void* native, const EmbeddingBackwardRows& a, const std::int32_t* row_of) {
  const std::size_t blocks = std::min((a.vocabulary + ids_of_block - 1) / ids_of_block, most_blocks);
  const auto tiles = static_cast<unsigned>((a.dim + warp * width - 1) / (warp * width));
  launch(native, {.blocks = dim3(static_cast<unsigned>(blocks), tiles), .threads = warp * ids_of_block},
         sum_tokens<T, width>, a, row_of);
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

// Leaves in the scratch memory where the rows of each id begin, and returns the rows in the order of their ids.
const std::int32_t* sort_rows(void* native, const EmbeddingBackwardRows& a) {
  launch(native, blocks_for(a.vocabulary + 1), clear_counts, a.scratch, a.vocabulary + 1);
  if (a.rows > 0) launch(native, blocks_for(a.rows), count_ids, a);
  launch(native, {.threads = scan_threads}, sum_counts, a.scratch, a.vocabulary);
  std::int32_t* const order = a.scratch + a.vocabulary + 1;
  if (a.rows == 0) return order;
  const std::size_t tiles = (a.rows + embedding_tile - 1) / embedding_tile;
  const tessera::cuda::Launch of_tiles{.blocks = dim3(static_cast<unsigned>(tiles)), .threads = embedding_tile};
  DigitPass pass{.from = nullptr, .to = order, .places = order + 2 * a.rows, .first_bit = 0};
  for (; a.vocabulary >> pass.first_bit != 0; pass.first_bit += embedding_digit_bits) {
    launch(native, of_tiles, count_digits, a, pass);
    launch(native, {.threads = scan_threads}, sum_counts, pass.places, tiles * embedding_digits);
    launch(native, of_tiles, place_rows, a, pass);
    pass.from = pass.to;
    pass.to = pass.from == order ? order + a.rows : order;
  }
  return pass.from;
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
      const std::int32_t* const row_of = sort_rows(native, a);
      if (a.dim % pack_width<T> == 0 && packed<T>(a.dy) && packed<T>(a.dtable)) {
        launch_sum_tokens<T, pack_width<T>>(native, a, row_of);
      } else {
        launch_sum_tokens<T, 1>(native, a, row_of);
      }
    }
    if (a.dpositions != nullptr && a.context > 0) {
      launch(native, blocks_of_rows(a.context, a.dim), sum_positions<T>, a);
    }
  });
}

}  // namespace tessera::nn::cuda
