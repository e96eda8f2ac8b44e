// Attention of fp32: a block has 32 queries (or keys) of a head, eight threads to a row, and walks over tiles of 32
// keys (or queries) in their order. Everything it multiplies is in shared memory. And which kernels a type takes.
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "src/cuda/attention.cuh"

namespace tessera::nn::cuda {

namespace {

constexpr std::size_t tile_rows = 32;
constexpr unsigned row_lanes = 8;
constexpr unsigned tile_threads = tile_rows * row_lanes;
constexpr std::size_t keys_of_lane = tile_rows / row_lanes;
constexpr std::size_t score_stride = tile_rows + 1;

struct Thread {
  std::size_t row = threadIdx.x / row_lanes;
  std::size_t lane = threadIdx.x % row_lanes;
};

// Rows of a matrix in shared memory, one number apart from a power of two.
struct Tile {
  float* data;
  std::size_t stride;
  __device__ float* row(std::size_t r) const { return data + r * stride; }
};

struct SharedTiles {
  __device__ explicit SharedTiles(std::size_t head_dim) : stride(head_dim + 1) {}
  __device__ Tile take() { return take_rows(stride); }
  __device__ Tile take_scores() { return take_rows(score_stride); }
  __device__ Tile take_rows(std::size_t row_stride) {
    const std::size_t bytes = tile_rows * row_stride * sizeof(float);
    const Tile tile{reinterpret_cast<float*>(dynamic_shared(next, bytes)), row_stride};
    next += bytes;
    return tile;
  }
  std::size_t next = 0;
  std::size_t stride;
};

std::size_t shared_bytes(std::size_t tiles, std::size_t scores, std::size_t head_dim) {
  return (tiles * (head_dim + 1) + scores * score_stride) * tile_rows * sizeof(float);
}

__device__ inline float group_sum(float value) {
  for (int distance = row_lanes / 2; distance > 0; distance /= 2) {
    value = value + __shfl_xor_sync(whole_warp, value, distance);
  }
  return value;
}
__device__ inline float group_max(float value) {
  for (int distance = row_lanes / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(whole_warp, value, distance));
  }
  return value;
}

// Rows first, first + 1, … below `end` of a matrix in global memory; zeros beyond.
template <typename T>
struct GlobalRows {
  T* first_row;
  std::size_t stride;
  std::size_t end;

  __device__ void load(const Thread& me, std::size_t first, std::size_t columns, const Tile& to) const {
    const std::size_t r = first + me.row;
    for (std::size_t c = me.lane; c < columns; c += row_lanes) {
      to.row(me.row)[c] = r < end ? first_row[r * stride + c] : 0.0f;
    }
  }
  __device__ void store(const Thread& me, std::size_t first, std::size_t columns, const Tile& from,
                        float factor) const {
    const std::size_t r = first + me.row;
    if (r >= end) return;
    for (std::size_t c = me.lane; c < columns; c += row_lanes) {
      first_row[r * stride + c] = from.row(me.row)[c] * factor;
    }
  }
};

__device__ inline void clear(const Thread& me, std::size_t columns, const Tile& tile) {
  for (std::size_t c = me.lane; c < columns; c += row_lanes) tile.row(me.row)[c] = 0.0f;
}

__device__ inline float dot(const float* a, const float* b, std::size_t count) {
  float sum = 0.0f;
  for (std::size_t c = 0; c < count; ++c) sum = fmaf(a[c], b[c], sum);
  return sum;
}

// Factors of the keys first + lane + 8 k of a query; `first` is a multiple of 32. Keys sixteen apart share a counter.
__device__ inline void factors_of_lane(const AttentionTiles& a, std::uint64_t mask_row, std::size_t first,
                                       std::size_t lane, float (&factors)[keys_of_lane]) {
  for (std::size_t half = 0; half < 2; ++half) {
    const std::size_t column = first + lane + half * row_lanes;
    const std::size_t counter = column / (mask_lanes * mask_words) * mask_lanes + column % mask_lanes;
    float words[4];
    mask_factors(a.mask, mask_row, static_cast<std::uint32_t>(counter), words);
    const bool upper = column / mask_lanes % mask_words >= 2;
    factors[half] = upper ? words[2] : words[0];
    factors[half + 2] = upper ? words[3] : words[1];
  }
}

// The running softmax of one query: largest score, sum of exponentials, both of the keys so far.
struct RunningSoftmax {
  float largest = -INFINITY;
  float sum = 0.0f;

  // scores become exponentials; returns what the sums so far shrink by.
  __device__ float take(float (&scores)[keys_of_lane], float scale) {
    float above = largest;
    for (std::size_t k = 0; k < keys_of_lane; ++k) above = fmaxf(above, scores[k]);
    above = group_max(above);
    const float shift = above == -INFINITY ? 0.0f : above;  // a row beyond the sequence knows no key
    const float shrink = __expf((largest - shift) * scale);
    float part = 0.0f;
    for (std::size_t k = 0; k < keys_of_lane; ++k) {
      scores[k] = __expf((scores[k] - shift) * scale);
      part = part + scores[k];
    }
    sum = sum * shrink + group_sum(part);
    largest = above;
    return shrink;
  }
};

// to += Σ scores[k] · rows of `from`, for the thread's columns.
__device__ inline void add_rows(const Thread& me, const float* scores, std::size_t score_step, const Tile& from,
                                std::size_t columns, const Tile& to, float shrink) {
  for (std::size_t c = me.lane; c < columns; c += row_lanes) {
    float sum = to.row(me.row)[c] * shrink;
    for (std::size_t k = 0; k < tile_rows; ++k) sum = fmaf(scores[k * score_step], from.row(k)[c], sum);
    to.row(me.row)[c] = sum;
  }
}

__global__ void forward_tiles(const AttentionTiles a) {
  const Thread me;
  const std::size_t first_wanted = a.sequence - a.queries;
  const TileOfHead at(a, (a.queries + tile_rows - 1) / tile_rows, true);
  SharedTiles shared(a.head_dim);
  const Tile q = shared.take(), k = shared.take(), v = shared.take(), sums = shared.take();
  const Tile scores = shared.take_scores();
  const auto* const qkv = static_cast<const float*>(a.qkv);
  const std::size_t dim = a.heads * a.head_dim;
  const GlobalRows<const float> rows[3] = {{part_of_qkv(qkv, a, at, 0), 3 * dim, a.sequence},
                                       {part_of_qkv(qkv, a, at, 1), 3 * dim, a.sequence},
                                       {part_of_qkv(qkv, a, at, 2), 3 * dim, a.sequence}};
  const std::size_t first = first_wanted + at.tile * tile_rows;
  const std::size_t query = first + me.row;
  const KnownKeys known(a);
  const std::size_t own_keys = query < a.sequence ? known.of(static_cast<unsigned>(query)) : 0;
  rows[0].load(me, first, a.head_dim, q);
  clear(me, a.head_dim, sums);
  RunningSoftmax softmax;
  for (std::size_t key = 0; key < known.of(static_cast<unsigned>(first + tile_rows - 1)); key += tile_rows) {
    __syncthreads();
    rows[1].load(me, key, a.head_dim, k);
    rows[2].load(me, key, a.head_dim, v);
    __syncthreads();
    float e[keys_of_lane];
    for (std::size_t i = 0; i < keys_of_lane; ++i) {
      const std::size_t near = me.lane + i * row_lanes;
      e[i] = key + near < own_keys ? dot(q.row(me.row), k.row(near), a.head_dim) : -INFINITY;
    }
    const float shrink = softmax.take(e, a.scale);
    if (drops(a)) {
      float factors[keys_of_lane];
      factors_of_lane(a, mask_row_of(a, at, query), key, me.lane, factors);
      for (std::size_t i = 0; i < keys_of_lane; ++i) e[i] = e[i] * factors[i];
    }
    for (std::size_t i = 0; i < keys_of_lane; ++i) scores.row(me.row)[me.lane + i * row_lanes] = e[i];
    __syncwarp();
    add_rows(me, scores.row(me.row), 1, v, a.head_dim, sums, shrink);
    __syncwarp();
  }
  const GlobalRows<float> out{static_cast<float*>(a.out) + at.sequence * a.queries * dim + at.head * a.head_dim, dim,
                          a.queries};
  out.store(me, first - first_wanted, a.head_dim, sums, 1.0f / softmax.sum);
  if (a.statistics != nullptr && me.lane == 0 && query < a.sequence) {
    a.statistics[statistic_of(a, at) + query] = softmax.largest * a.scale + logf(softmax.sum);
  }
}

// Lanes of a group of as many as have a pack of a head each: a power of two, a whole warp at most.
unsigned delta_lanes(std::size_t head_dim, std::size_t width) {
  unsigned lanes = 1;
  while (lanes < warp && lanes * width < head_dim) lanes *= 2;
  return lanes;
}

// delta[row, head] = Σ dout · out: what backward takes off every gradient of a probability. A group of lanes has a head.
template <std::size_t width, typename T>
__global__ void delta_rows(const AttentionTiles a, unsigned lanes) {
  const std::size_t count = a.sequences * a.sequence * a.heads;
  const std::size_t groups = threads_of_grid() / lanes;
  const unsigned lane = threadIdx.x % lanes;
  // Whole warps go round, so that all lanes are there when a group forms its sum.
  for (std::size_t first = thread_of_grid() / warp * (warp / lanes); first < count; first += groups) {
    const std::size_t i = first + threadIdx.x % warp / lanes;
    float sum = 0.0f;
    if (i < count) {
      for (std::size_t c = lane * width; c < a.head_dim; c += lanes * width) {
        float out[width];
        float dout[width];
        load<width>(static_cast<const T*>(a.out) + i * a.head_dim + c, out);
        load<width>(static_cast<const T*>(a.dout) + i * a.head_dim + c, dout);
#pragma unroll
        for (std::size_t k = 0; k < width; ++k) sum = fmaf(dout[k], out[k], sum);
      }
    }
    for (unsigned distance = lanes / 2; distance > 0; distance /= 2) {
      sum = sum + __shfl_xor_sync(whole_warp, sum, static_cast<int>(distance));
    }
    if (i >= count || lane != 0) continue;
    const std::size_t row = i / a.heads;
    a.deltas[(row / a.sequence * a.heads + i % a.heads) * a.sequence + row % a.sequence] = sum;
  }
}

// The tiles are of queries and keys in shared memory.
struct BackwardTiles {
  Tile q, dout, k, v;
  Tile probabilities;  // [query, key], dropped ones 0
  Tile gradients;      // [query, key], of scores
};

__device__ void form_gradients(const AttentionTiles& a, const TileOfHead& at, const Thread& me,
                               const BackwardTiles& tiles, std::size_t first_query, std::size_t first_key) {
  const std::size_t query = first_query + me.row;
  const bool exists = query < a.sequence;
  const std::size_t own_keys = exists ? KnownKeys(a).of(static_cast<unsigned>(query)) : 0;
  const std::size_t row = statistic_of(a, at) + query;
  const float statistic = exists ? a.statistics[row] : 0.0f;
  const float delta = exists ? a.deltas[row] : 0.0f;
  float factors[keys_of_lane] = {1.0f, 1.0f, 1.0f, 1.0f};
  if (drops(a)) factors_of_lane(a, mask_row_of(a, at, query), first_key, me.lane, factors);
  for (std::size_t i = 0; i < keys_of_lane; ++i) {
    const std::size_t near = me.lane + i * row_lanes;
    float p = 0.0f;
    float g = 0.0f;
    if (first_key + near < own_keys) {
      p = __expf(dot(tiles.q.row(me.row), tiles.k.row(near), a.head_dim) * a.scale - statistic);
      g = dot(tiles.dout.row(me.row), tiles.v.row(near), a.head_dim) * factors[i];
    }
    tiles.probabilities.row(me.row)[near] = p * factors[i];
    tiles.gradients.row(me.row)[near] = p * (g - delta) * a.scale;
  }
}

struct BackwardRows {
  __device__ BackwardRows(const AttentionTiles& a, const TileOfHead& at) {
    const std::size_t dim = a.heads * a.head_dim;
    const auto* const qkv = static_cast<const float*>(a.qkv);
    q = {part_of_qkv(qkv, a, at, 0), 3 * dim, a.sequence};
    k = {part_of_qkv(qkv, a, at, 1), 3 * dim, a.sequence};
    v = {part_of_qkv(qkv, a, at, 2), 3 * dim, a.sequence};
    dout = {static_cast<const float*>(a.dout) + at.sequence * a.sequence * dim + at.head * a.head_dim, dim, a.sequence};
  }
  GlobalRows<const float> q, k, v, dout;
};

__device__ GlobalRows<float> gradient_rows(const AttentionTiles& a, const TileOfHead& at, std::size_t part) {
  return {part_of_qkv(static_cast<float*>(a.dqkv), a, at, part), 3 * a.heads * a.head_dim, a.sequence};
}

__global__ void query_gradients(const AttentionTiles a) {
  const Thread me;
  const TileOfHead at(a, (a.sequence + tile_rows - 1) / tile_rows, true);
  SharedTiles shared(a.head_dim);
  const BackwardTiles tiles{shared.take(), shared.take(), shared.take(), shared.take(), shared.take_scores(),
                            shared.take_scores()};
  const Tile dq = shared.take();
  const BackwardRows rows(a, at);
  const std::size_t first = at.tile * tile_rows;
  rows.q.load(me, first, a.head_dim, tiles.q);
  rows.dout.load(me, first, a.head_dim, tiles.dout);
  clear(me, a.head_dim, dq);
  for (std::size_t key = 0; key < KnownKeys(a).of(static_cast<unsigned>(first + tile_rows - 1)); key += tile_rows) {
    __syncthreads();
    rows.k.load(me, key, a.head_dim, tiles.k);
    rows.v.load(me, key, a.head_dim, tiles.v);
    __syncthreads();
    form_gradients(a, at, me, tiles, first, key);
    __syncwarp();
    add_rows(me, tiles.gradients.row(me.row), 1, tiles.k, a.head_dim, dq, 1.0f);
  }
  gradient_rows(a, at, 0).store(me, first, a.head_dim, dq, 1.0f);
}

__global__ void key_gradients(const AttentionTiles a) {
  const Thread me;
  const TileOfHead at(a, (a.sequence + tile_rows - 1) / tile_rows, false);
  SharedTiles shared(a.head_dim);
  const BackwardTiles tiles{shared.take(), shared.take(), shared.take(), shared.take(), shared.take_scores(),
                            shared.take_scores()};
  const Tile dk = shared.take(), dv = shared.take();
  const BackwardRows rows(a, at);
  const std::size_t first = at.tile * tile_rows;
  rows.k.load(me, first, a.head_dim, tiles.k);
  rows.v.load(me, first, a.head_dim, tiles.v);
  clear(me, a.head_dim, dk);
  clear(me, a.head_dim, dv);
  for (std::size_t query = a.causal ? first : 0; query < a.sequence; query += tile_rows) {
    __syncthreads();
    rows.q.load(me, query, a.head_dim, tiles.q);
    rows.dout.load(me, query, a.head_dim, tiles.dout);
    __syncthreads();
    form_gradients(a, at, me, tiles, query, first);
    __syncthreads();
    add_rows(me, tiles.gradients.data + me.row, score_stride, tiles.q, a.head_dim, dk, 1.0f);
    add_rows(me, tiles.probabilities.data + me.row, score_stride, tiles.dout, a.head_dim, dv, 1.0f);
  }
  gradient_rows(a, at, 1).store(me, first, a.head_dim, dk, 1.0f);
  gradient_rows(a, at, 2).store(me, first, a.head_dim, dv, 1.0f);
}

// Blocks of a kernel that has a tile of every head.
template <typename Kernel>
void launch_tiles(void* native, const AttentionTiles& a, std::size_t rows, std::size_t bytes, Kernel kernel) {
  const std::size_t blocks = (rows + tile_rows - 1) / tile_rows * a.sequences * a.heads;
  allow_shared(reinterpret_cast<const void*>(kernel), bytes);
  launch(native,
         {.blocks = dim3(static_cast<unsigned>(blocks)), .threads = tile_threads, .shared_bytes = bytes}, kernel, a);
}

template <std::size_t width, typename T>
void launch_deltas(void* native, const AttentionTiles& a) {
  const unsigned lanes = delta_lanes(a.head_dim, width);
  launch(native, blocks_for(a.sequences * a.sequence * a.heads * lanes), delta_rows<width, T>, a, lanes);
}

void form_deltas(void* native, const AttentionTiles& a) {
  for_element(a.format, [&](auto type) {
    using T = typename decltype(type)::Element;
    const bool packs = a.head_dim % pack_width<T> == 0 && packed<T>(a.out) && packed<T>(a.dout);
    packs ? launch_deltas<pack_width<T>, T>(native, a) : launch_deltas<1, T>(native, a);
  });
}

}  // namespace

// Heads of fp32 differ in what a kernel takes: the most so far is what the device was asked for.
void allow_shared(const void* kernel, std::size_t bytes) {
  constexpr std::size_t always = 48 * 1024;
  if (bytes <= always) return;
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, std::size_t> allowed;  // by device and kernel
  int device = 0;
  tessera::cuda::require(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  std::size_t& most = allowed[{device, kernel}];
  if (bytes <= most) return;
  tessera::cuda::require(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize)");
  most = bytes;
}

void attention_forward(void* native, const AttentionTiles& a) {
  if (a.sequences == 0 || a.queries == 0) return;
  if (a.format != Format::fp32) return tensor_attention_forward(native, a);
  launch_tiles(native, a, a.queries, shared_bytes(4, 1, a.head_dim), forward_tiles);
}

void attention_backward(void* native, const AttentionTiles& a) {
  if (a.sequences == 0) return;
  form_deltas(native, a);
  if (a.format != Format::fp32) return tensor_attention_backward(native, a);
  launch_tiles(native, a, a.sequence, shared_bytes(5, 2, a.head_dim), query_gradients);
  launch_tiles(native, a, a.sequence, shared_bytes(6, 2, a.head_dim), key_gradients);
}

}  // namespace tessera::nn::cuda
