// Causal attention of bf16 and fp16 on tensor cores: a block has 64 queries (or keys) of a head, a warp sixteen of them,
// and walks over tiles of 64 keys (or queries) in their order. Scores pass through shared memory in fp32; probabilities
// and their gradients are rounded to the element type before they are multiplied, sums are fp32.
#include <mma.h>

#include <cmath>

#include "src/cuda/attention.cuh"

namespace tessera::nn::cuda {

namespace {

namespace wmma = nvcuda::wmma;

constexpr std::size_t side = 64;     // of tiles
constexpr std::size_t sixteen = 16;  // of the tensor cores' tiles
constexpr unsigned tile_warps = side / sixteen;
constexpr std::size_t lane_scores = side * sixteen / warp;  // of a warp's rows
// Rows in shared memory are longer by what spreads them over its banks.
constexpr std::size_t score_stride = side + 4;
constexpr std::size_t probability_stride = side + 8;
template <std::size_t width>
constexpr std::size_t row_stride = width + 8;

template <typename T>
using Rows = wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major>;
template <typename T>
using Columns = wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::row_major>;
template <typename T>
using TransposedColumns = wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major>;
using Sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// A lane has half of one of its warp's sixteen rows: score i stands in column(i). Four of them share a counter of the mask.
struct Lane {
  std::size_t warp_of_block = threadIdx.x / warp;
  std::size_t row = threadIdx.x % warp / 2;
  std::size_t half = threadIdx.x % 2;

  __device__ std::size_t column(std::size_t i) const { return 2 * (i % 8) + half + sixteen * (i / 8); }
  __device__ std::size_t row_of_tile() const { return warp_of_block * sixteen + row; }
};

// Parts of the block's shared memory; each begins on 128 bytes.
struct SharedParts {
  unsigned char* next = dynamic_shared();

  template <typename T>
  __device__ T* take(std::size_t count) {
    T* const part = reinterpret_cast<T*>(next);
    next += (count * sizeof(T) + 127) / 128 * 128;
    return part;
  }
};

template <typename T, std::size_t width>
struct TileOfRows {
  T* data;

  __device__ explicit TileOfRows(SharedParts& parts) : data(parts.take<T>(side * row_stride<width>)) {}
  __device__ const T* of_warp(const Lane& lane) const {
    return data + lane.warp_of_block * sixteen * row_stride<width>;
  }
};

// One for each warp.
template <typename T>
__device__ T* rows_of_warp(SharedParts& parts, const Lane& lane, std::size_t stride) {
  return parts.take<T>(side * stride) + lane.warp_of_block * sixteen * stride;
}

// Rows of a head in global memory.
template <typename T>
struct HeadRows {
  T* first_row;
  std::size_t stride;
  std::size_t end;
};

// Rows first, … of a head into a tile, with zeros for rows beyond the end and columns beyond the head.
template <typename T, std::size_t width>
__device__ void load_tile(const HeadRows<const T>& from, std::size_t first, std::size_t head_dim, bool packs,
                          const TileOfRows<T, width>& to) {
  constexpr std::size_t count = pack_width<T>;
  using Elements = Pack<T, count>;
  for (std::size_t i = threadIdx.x; i < side * width / count; i += blockDim.x) {
    const std::size_t row = i / (width / count);
    const std::size_t column = i % (width / count) * count;
    const T* const place = from.first_row + (first + row) * from.stride + column;
    T* const target = to.data + row * row_stride<width> + column;
    if (first + row >= from.end || column >= head_dim) {
      Elements zeros;
      for (std::size_t k = 0; k < count; ++k) zeros.element[k] = to_element<T>(0.0f);
      *reinterpret_cast<Elements*>(target) = zeros;
    } else if (packs) {
      *reinterpret_cast<Elements*>(target) = *reinterpret_cast<const Elements*>(place);
    } else {
#pragma unroll 1
      for (std::size_t k = 0; k < count; ++k) target[k] = column + k < head_dim ? place[k] : to_element<T>(0.0f);
    }
  }
}

// to [16, 64] = rows [16, width] · columnsᵀ, with columns [64, width]
template <std::size_t width, typename T>
__device__ void multiply_transposed(const T* rows, const T* columns, float* to) {
  Sums sums[tile_warps];
  for (auto& sum : sums) wmma::fill_fragment(sum, 0.0f);
#pragma unroll
  for (std::size_t k = 0; k < width; k += sixteen) {
    Rows<T> a;
    wmma::load_matrix_sync(a, rows + k, row_stride<width>);
#pragma unroll
    for (std::size_t n = 0; n < tile_warps; ++n) {
      TransposedColumns<T> b;
      wmma::load_matrix_sync(b, columns + n * sixteen * row_stride<width> + k, row_stride<width>);
      wmma::mma_sync(sums[n], a, b, sums[n]);
    }
  }
  for (std::size_t n = 0; n < tile_warps; ++n) {
    wmma::store_matrix_sync(to + n * sixteen, sums[n], score_stride, wmma::mem_row_major);
  }
}

// The sums of a warp's sixteen rows, in registers.
template <std::size_t width>
struct RowSums {
  Sums parts[width / sixteen];

  __device__ RowSums() {
    for (auto& part : parts) wmma::fill_fragment(part, 0.0f);
  }

  // += probabilities [16, 64] · rows [64, width]
  template <typename T>
  __device__ void add(const T* probabilities, const T* rows) {
#pragma unroll
    for (std::size_t k = 0; k < side; k += sixteen) {
      Rows<T> a;
      wmma::load_matrix_sync(a, probabilities + k, probability_stride);
#pragma unroll
      for (std::size_t n = 0; n < width / sixteen; ++n) {
        Columns<T> b;
        wmma::load_matrix_sync(b, rows + k * row_stride<width> + n * sixteen, row_stride<width>);
        wmma::mma_sync(parts[n], a, b, parts[n]);
      }
    }
  }

  // function(column, sum) for each of the lane's sums, by way of `room` [16, 64]; what it leaves in the sum is kept when
  // `keep`.
  template <typename Function>
  __device__ void visit(const Lane& lane, float* room, bool keep, const Function& function) {
    for (std::size_t first = 0; first < width; first += side) {
      __syncwarp();
      for (std::size_t n = 0; n < tile_warps; ++n) {
        wmma::store_matrix_sync(room + n * sixteen, parts[first / sixteen + n], score_stride, wmma::mem_row_major);
      }
      __syncwarp();
      for (std::size_t i = 0; i < lane_scores; ++i) {
        function(first + lane.column(i), room[lane.row * score_stride + lane.column(i)]);
      }
      __syncwarp();
      for (std::size_t n = 0; keep && n < tile_warps; ++n) {
        wmma::load_matrix_sync(parts[first / sixteen + n], room + n * sixteen, score_stride, wmma::mem_row_major);
      }
    }
    __syncwarp();
  }

  // Into row `row` of a head, times a factor.
  template <typename T>
  __device__ void store(const Lane& lane, float* room, const HeadRows<T>& to, std::size_t row, std::size_t head_dim,
                        float factor) {
    visit(lane, room, false, [&](std::size_t column, const float& sum) {
      if (row < to.end && column < head_dim) to.first_row[row * to.stride + column] = to_element<T>(sum * factor);
    });
  }
};

// Multiplies the scores of one query by the factors of the keys first_key + column(i).
__device__ void drop_keys(const AttentionTiles& a, const Lane& lane, std::uint64_t mask_row, std::size_t first_key,
                          float (&scores)[lane_scores]) {
  for (std::size_t c = 0; c < 8; ++c) {
    float words[mask_words];
    const std::size_t counter = first_key / side * mask_lanes + 2 * c + lane.half;
    mask_factors(a.mask, mask_row, static_cast<std::uint32_t>(counter), words);
    for (std::size_t word = 0; word < mask_words; ++word) scores[word * 8 + c] = scores[word * 8 + c] * words[word];
  }
}

// The running softmax of one query. Exponentials refer to a score that is only moved, and with it all sums so far, when
// the largest score is far above it.
struct RunningSoftmax {
  float reference = -INFINITY;
  float sum = 0.0f;

  // What the sums so far shrink by.
  __device__ float move(const float (&scores)[lane_scores], float scale) {
    constexpr float far = 8.0f;
    float largest = -INFINITY;
    for (const float score : scores) largest = fmaxf(largest, score);
    largest = fmaxf(largest, __shfl_xor_sync(whole_warp, largest, 1));
    if (!(largest > reference) || (largest - reference) * scale <= far) return 1.0f;
    const float shrink = __expf((reference - largest) * scale);
    reference = largest;
    sum = sum * shrink;
    return shrink;
  }

  // scores become exponentials.
  __device__ void take(float (&scores)[lane_scores], float scale) {
    const float shift = reference == -INFINITY ? 0.0f : reference;  // a row beyond the sequence knows no key
    float part = 0.0f;
    for (float& score : scores) {
      score = __expf((score - shift) * scale);
      part = part + score;
    }
    sum = sum + (part + __shfl_xor_sync(whole_warp, part, 1));
  }
};

template <typename T>
__device__ HeadRows<const T> qkv_rows(const AttentionTiles& a, const TileOfHead& at, std::size_t part) {
  return {part_of_qkv(static_cast<const T*>(a.qkv), a, at, part), 3 * a.heads * a.head_dim, a.sequence};
}
template <typename T>
__device__ HeadRows<T> gradient_rows(const AttentionTiles& a, const TileOfHead& at, std::size_t part) {
  return {part_of_qkv(static_cast<T*>(a.dqkv), a, at, part), 3 * a.heads * a.head_dim, a.sequence};
}
template <typename T>
__device__ HeadRows<const T> dout_rows(const AttentionTiles& a, const TileOfHead& at) {
  const std::size_t dim = a.heads * a.head_dim;
  return {static_cast<const T*>(a.dout) + at.sequence * a.sequence * dim + at.head * a.head_dim, dim, a.sequence};
}

template <typename T, std::size_t width>
__global__ void __launch_bounds__(tile_warps * warp) forward_tiles(const AttentionTiles a, bool packs) {
  const Lane lane;
  const TileOfHead at(a, (a.queries + side - 1) / side, true);
  SharedParts parts;
  const TileOfRows<T, width> q(parts), k(parts), v(parts);
  float* const scores = rows_of_warp<float>(parts, lane, score_stride);
  T* const probabilities = rows_of_warp<T>(parts, lane, probability_stride);
  const std::size_t first_wanted = a.sequence - a.queries;
  const std::size_t first = first_wanted + at.tile * side;
  const std::size_t query = first + lane.row_of_tile();
  load_tile(qkv_rows<T>(a, at, 0), first, a.head_dim, packs, q);
  RowSums<width> sums;
  RunningSoftmax softmax;
  for (std::size_t key = 0; key < first + side && key < a.sequence; key += side) {
    __syncthreads();
    load_tile(qkv_rows<T>(a, at, 1), key, a.head_dim, packs, k);
    load_tile(qkv_rows<T>(a, at, 2), key, a.head_dim, packs, v);
    __syncthreads();
    multiply_transposed<width>(q.of_warp(lane), k.data, scores);
    __syncwarp();
    float e[lane_scores];
    for (std::size_t i = 0; i < lane_scores; ++i) {
      const bool known = query < a.sequence && key + lane.column(i) <= query;
      e[i] = known ? scores[lane.row * score_stride + lane.column(i)] : -INFINITY;
    }
    const float shrink = softmax.move(e, a.scale);
    if (key > 0 && warp_max(shrink == 1.0f ? 0.0f : 1.0f) > 0.0f) {
      sums.visit(lane, scores, true, [&](std::size_t, float& sum) { sum = sum * shrink; });
    }
    softmax.take(e, a.scale);
    if (drops(a)) drop_keys(a, lane, mask_row_of(a, at, query), key, e);
    for (std::size_t i = 0; i < lane_scores; ++i) {
      probabilities[lane.row * probability_stride + lane.column(i)] = to_element<T>(e[i]);
    }
    __syncwarp();
    sums.add(probabilities, v.data);
  }
  const std::size_t dim = a.heads * a.head_dim;
  const HeadRows<T> out{static_cast<T*>(a.out) + at.sequence * a.queries * dim + at.head * a.head_dim, dim, a.queries};
  sums.store(lane, scores, out, query - first_wanted, a.head_dim, 1.0f / softmax.sum);
  if (a.statistics != nullptr && lane.half == 0 && query < a.sequence) {
    a.statistics[statistic_of(a, at) + query] = softmax.reference * a.scale + logf(softmax.sum);
  }
}

template <typename T, std::size_t width>
__global__ void __launch_bounds__(tile_warps * warp) query_gradients(const AttentionTiles a, bool packs) {
  const Lane lane;
  const TileOfHead at(a, (a.sequence + side - 1) / side, true);
  SharedParts parts;
  const TileOfRows<T, width> q(parts), dout(parts), k(parts), v(parts);
  float* const scores = rows_of_warp<float>(parts, lane, score_stride);
  T* const gradients = rows_of_warp<T>(parts, lane, probability_stride);
  const std::size_t first = at.tile * side;
  const std::size_t query = first + lane.row_of_tile();
  const float statistic = query < a.sequence ? a.statistics[statistic_of(a, at) + query] : 0.0f;
  const float delta = query < a.sequence ? a.deltas[statistic_of(a, at) + query] : 0.0f;
  load_tile(qkv_rows<T>(a, at, 0), first, a.head_dim, packs, q);
  load_tile(dout_rows<T>(a, at), first, a.head_dim, packs, dout);
  RowSums<width> dq;
  for (std::size_t key = 0; key <= first; key += side) {
    __syncthreads();
    load_tile(qkv_rows<T>(a, at, 1), key, a.head_dim, packs, k);
    load_tile(qkv_rows<T>(a, at, 2), key, a.head_dim, packs, v);
    __syncthreads();
    multiply_transposed<width>(q.of_warp(lane), k.data, scores);
    __syncwarp();
    float p[lane_scores];
    float g[lane_scores];
    for (std::size_t i = 0; i < lane_scores; ++i) {
      const bool known = query < a.sequence && key + lane.column(i) <= query;
      p[i] = known ? __expf(scores[lane.row * score_stride + lane.column(i)] * a.scale - statistic) : 0.0f;
    }
    __syncwarp();
    multiply_transposed<width>(dout.of_warp(lane), v.data, scores);
    __syncwarp();
    for (std::size_t i = 0; i < lane_scores; ++i) g[i] = scores[lane.row * score_stride + lane.column(i)];
    if (drops(a)) drop_keys(a, lane, mask_row_of(a, at, query), key, g);
    for (std::size_t i = 0; i < lane_scores; ++i) {
      gradients[lane.row * probability_stride + lane.column(i)] = to_element<T>(p[i] * (g[i] - delta) * a.scale);
    }
    __syncwarp();
    dq.add(gradients, k.data);
  }
  dq.store(lane, scores, gradient_rows<T>(a, at, 0), query, a.head_dim, 1.0f);
}

// The factor of one query and key.
__device__ float factor_of(const AttentionTiles& a, std::uint64_t mask_row, std::size_t key) {
  float words[mask_words];
  const std::size_t counter = key / side * mask_lanes + key % mask_lanes;
  mask_factors(a.mask, mask_row, static_cast<std::uint32_t>(counter), words);
  return words[key / mask_lanes % mask_words];
}

// As query_gradients(), on the transposed tiles: rows are keys, columns queries.
template <typename T, std::size_t width>
__global__ void __launch_bounds__(tile_warps * warp) key_gradients(const AttentionTiles a, bool packs) {
  const Lane lane;
  const TileOfHead at(a, (a.sequence + side - 1) / side, false);
  SharedParts parts;
  const TileOfRows<T, width> q(parts), dout(parts), k(parts), v(parts);
  float* const scores = rows_of_warp<float>(parts, lane, score_stride);
  T* const probabilities = rows_of_warp<T>(parts, lane, probability_stride);
  T* const gradients = rows_of_warp<T>(parts, lane, probability_stride);
  float* const statistics = parts.take<float>(side);
  float* const deltas = parts.take<float>(side);
  const std::size_t first = at.tile * side;
  const std::size_t key = first + lane.row_of_tile();
  load_tile(qkv_rows<T>(a, at, 1), first, a.head_dim, packs, k);
  load_tile(qkv_rows<T>(a, at, 2), first, a.head_dim, packs, v);
  RowSums<width> dk;
  RowSums<width> dv;
  for (std::size_t query = first; query < a.sequence; query += side) {
    __syncthreads();
    load_tile(qkv_rows<T>(a, at, 0), query, a.head_dim, packs, q);
    load_tile(dout_rows<T>(a, at), query, a.head_dim, packs, dout);
    if (threadIdx.x < side && query + threadIdx.x < a.sequence) {
      statistics[threadIdx.x] = a.statistics[statistic_of(a, at) + query + threadIdx.x];
      deltas[threadIdx.x] = a.deltas[statistic_of(a, at) + query + threadIdx.x];
    }
    __syncthreads();
    multiply_transposed<width>(k.of_warp(lane), q.data, scores);
    __syncwarp();
    float p[lane_scores];
    for (std::size_t i = 0; i < lane_scores; ++i) {
      const std::size_t near = lane.column(i);
      const bool known = query + near < a.sequence && key <= query + near;
      p[i] = known ? __expf(scores[lane.row * score_stride + near] * a.scale - statistics[near]) : 0.0f;
    }
    __syncwarp();
    multiply_transposed<width>(v.of_warp(lane), dout.data, scores);
    __syncwarp();
    for (std::size_t i = 0; i < lane_scores; ++i) {
      const std::size_t near = lane.column(i);
      const bool known = query + near < a.sequence && key <= query + near;
      const float factor = drops(a) && known ? factor_of(a, mask_row_of(a, at, query + near), key) : 1.0f;
      const float g = scores[lane.row * score_stride + near] * factor;
      const float gradient = known ? p[i] * (g - deltas[near]) * a.scale : 0.0f;
      probabilities[lane.row * probability_stride + near] = to_element<T>(p[i] * factor);
      gradients[lane.row * probability_stride + near] = to_element<T>(gradient);
    }
    __syncwarp();
    dv.add(probabilities, dout.data);
    dk.add(gradients, q.data);
  }
  dk.store(lane, scores, gradient_rows<T>(a, at, 1), key, a.head_dim, 1.0f);
  dv.store(lane, scores, gradient_rows<T>(a, at, 2), key, a.head_dim, 1.0f);
}

// `rows`: tiles of rows; `scores` and `probabilities`: tiles of the block's warps.
template <std::size_t width>
std::size_t shared_bytes(std::size_t rows, std::size_t probabilities) {
  constexpr std::size_t element = 2;
  return rows * side * row_stride<width> * element + side * score_stride * sizeof(float) +
         probabilities * side * probability_stride * element + 2 * side * sizeof(float);
}

template <typename Kernel>
void launch_tiles(void* native, const AttentionTiles& a, std::size_t rows, std::size_t bytes, Kernel kernel) {
  constexpr std::size_t pack_bytes = 16;
  const std::size_t blocks = (rows + side - 1) / side * a.sequences * a.heads;
  const auto on_packs = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % pack_bytes == 0; };
  const bool packs = a.head_dim % 8 == 0 && on_packs(a.qkv) && on_packs(a.dout);
  allow_shared(kernel, bytes);
  launch(native,
         {.blocks = dim3(static_cast<unsigned>(blocks)), .threads = tile_warps * warp, .shared_bytes = bytes}, kernel,
         a, packs);
}

template <typename T, std::size_t width>
struct Kernels {
  static void forward(void* native, const AttentionTiles& a) {
    launch_tiles(native, a, a.queries, shared_bytes<width>(3, 1), forward_tiles<T, width>);
  }
  static void backward(void* native, const AttentionTiles& a) {
    launch_tiles(native, a, a.sequence, shared_bytes<width>(4, 1), query_gradients<T, width>);
    launch_tiles(native, a, a.sequence, shared_bytes<width>(4, 2), key_gradients<T, width>);
  }
};

// function(Kernels<…>{}) for the type and the narrowest width that holds a head.
template <typename Function>
void with_kernels(const AttentionTiles& a, const Function& function) {
  const auto of_width = [&](auto type) {
    using T = typename decltype(type)::Element;
    if (a.head_dim <= side) return function(Kernels<T, side>{});
    function(Kernels<T, 2 * side>{});
  };
  if (a.format == Format::bf16) return of_width(Type<__nv_bfloat16>{});
  of_width(Type<__half>{});
}

}  // namespace

void tensor_attention_forward(void* native, const AttentionTiles& a) {
  with_kernels(a, [&](auto kernels) { kernels.forward(native, a); });
}

void tensor_attention_backward(void* native, const AttentionTiles& a) {
  with_kernels(a, [&](auto kernels) { kernels.backward(native, a); });
}

}  // namespace tessera::nn::cuda
