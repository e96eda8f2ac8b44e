// Attention of bf16 and fp16 on tensor cores (Dao 2023, FlashAttention-2): a block has queries (or keys) of a head,
// a warp 16 or 32 of them, and walks over tiles of 64 keys (or queries) in their order while the next ones are copied into
// shared memory. Scores stay in registers, in fp32; probabilities and their gradients are rounded to the element type
// before they are multiplied.
#include <cmath>

#include "src/cuda/attention.cuh"
#include "src/cuda/attention_sizes.hpp"
#include "src/cuda/tensor_core.cuh"

namespace tessera::nn::cuda {

namespace {

constexpr float log2_of_e = 1.4426950408889634f;

// A warp's sums are sixteens of rows and eights of columns, in fragments (tensor_core.cuh).
template <unsigned sixteens, unsigned eights>
using Sums = float[sixteens][eights][4];

struct Lane {
  unsigned warp_of_block = threadIdx.x / warp;
  unsigned lane = threadIdx.x % warp;

  // These are the places of number i of the fragment for sixteen r and eight n.
  __device__ unsigned row(unsigned r, unsigned i) const { return 16 * r + lane / 4 + i / 2 * 8; }
  __device__ unsigned column(unsigned n, unsigned i) const { return 8 * n + lane % 4 * 2 + i % 2; }

  // Where the lane's row begins of the four tiles that make up A's [16, 16], and with transposes B's [16, 16] ...
  template <unsigned width>
  __device__ unsigned across() const {
    return lane % 16 * row_stride<width> + lane / 16 * 8;
  }
  // ... and, without, those of B that stand transposed in memory.
  template <unsigned width>
  __device__ unsigned along() const {
    return (lane % 8 + lane / 16 * 8) * row_stride<width> + lane / 8 % 2 * 8;
  }
};

// Parts of the block's shared memory; each begins on 128 bytes.
struct SharedParts {
  std::size_t next = 0;

  template <typename T>
  __device__ T* take(unsigned count) {
    T* const part = reinterpret_cast<T*>(dynamic_shared(next, count * sizeof(T)));
    next += (count * sizeof(T) + 127) / 128 * 128;
    return part;
  }
};

// Rows of a head in global memory.
template <typename T>
struct HeadRows {
  T* first_row;
  unsigned stride;
  unsigned end;
  unsigned columns;
  bool packs;  // eight elements at a time can be read and written

  __device__ T* row(unsigned r) const { return first_row + static_cast<std::size_t>(r) * stride; }
};

// Rows first, ... of a head into a tile, zeros beyond the end and beyond the head; seen after await_copies() and a barrier.
template <unsigned rows, unsigned width, typename T>
__device__ void load_tile(const HeadRows<const T>& from, unsigned first, T* to) {
  constexpr unsigned packs_of_row = width / pack_elements;
  if (!from.packs) {
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < rows * width; i += tile_threads) {
      const unsigned row = i / width;
      const unsigned column = i % width;
      const bool exists = first + row < from.end && column < from.columns;
      to[row * row_stride<width> + column] = exists ? from.row(first + row)[column] : to_element<T>(0.0f);
    }
    return;
  }
  constexpr unsigned step = tile_threads / packs_of_row;
  const unsigned column = threadIdx.x % packs_of_row * pack_elements;
  const unsigned row = threadIdx.x / packs_of_row;
  const T* place = from.row(first + row) + column;
  to += row * row_stride<width> + column;
  const unsigned left = column < from.columns && first + row < from.end ? from.end - first - row : 0;
#pragma unroll
  for (unsigned i = 0; i < rows; i += step) {
    copy_async<16>(to + i * row_stride<width>, place, i < left);
    place += step * from.stride;
  }
}

// sums += rows [16 R, width] · columnsᵀ, with columns [8 N, width]; both begin at the lane's places.
template <unsigned width, typename T, unsigned R, unsigned N>
__device__ void multiply_transposed(const T* rows, const T* columns, Sums<R, N>& sums) {
#pragma unroll
  for (unsigned k = 0; k < width; k += 16) {
    unsigned a[R][4];
#pragma unroll
    for (unsigned r = 0; r < R; ++r) load_matrices<false>(a[r], rows + 16 * r * row_stride<width> + k);
#pragma unroll
    for (unsigned n = 0; n < N; n += 2) {
      unsigned b[4];
      load_matrices<false>(b, columns + 8 * n * row_stride<width> + k);
#pragma unroll
      for (unsigned r = 0; r < R; ++r) {
        multiply_add<T>(sums[r][n], a[r], b[0], b[1]);
        multiply_add<T>(sums[r][n + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// sums += left [16 R, 8 N], rounded to T, · rows [8 N, width], which begin at the lane's place. Sums become operands
// where they are: two fragments of theirs are one of A.
template <unsigned width, typename T, unsigned R, unsigned N>
__device__ void add_products(const Sums<R, N>& left, const T* rows, Sums<R, width / 8>& sums) {
#pragma unroll
  for (unsigned k = 0; k < N; k += 2) {
    unsigned a[R][4];
#pragma unroll
    for (unsigned r = 0; r < R; ++r) {
      for (unsigned i = 0; i < 4; ++i) {
        const float(&from)[4] = left[r][k + i / 2];
        a[r][i] = pair_of<T>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (unsigned n = 0; n < width / 8; n += 2) {
      unsigned b[4];
      load_matrices<true>(b, rows + 8 * k * row_stride<width> + 8 * n);
#pragma unroll
      for (unsigned r = 0; r < R; ++r) {
        multiply_add<T>(sums[r][n], a[r], b[0], b[1]);
        multiply_add<T>(sums[r][n + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// function(r, n, i) for each number of a lane's sums.
template <unsigned R, unsigned N, typename Function>
__device__ void for_each(const Sums<R, N>&, const Function& function) {
#pragma unroll
  for (unsigned r = 0; r < R; ++r) {
#pragma unroll
    for (unsigned n = 0; n < N; ++n) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) function(r, n, i);
    }
  }
}

// The warp's sums into rows first, ... of a head, each times factor(r, i), by way of `room`: as many rows of a tile that
// the warp alone has read, beginning there.
template <unsigned width, typename T, unsigned R, typename Factor>
__device__ void store_rows(const Lane& lane, const Sums<R, width / 8>& sums, const Factor& factor, T* room,
                           const HeadRows<T>& to, unsigned first) {
  __syncwarp();
#pragma unroll
  for (unsigned r = 0; r < R; ++r) {
#pragma unroll
    for (unsigned i = 0; i < 4; i += 2) {
      const float by = factor(r, i);
#pragma unroll
      for (unsigned n = 0; n < width / 8; ++n) {
        const float values[2] = {sums[r][n][i] * by, sums[r][n][i + 1] * by};
        store<2>(room + lane.row(r, i) * row_stride<width> + lane.column(n, 0), values);
      }
    }
  }
  __syncwarp();
  constexpr unsigned packs_of_row = width / pack_elements;
#pragma unroll 4
  for (unsigned i = lane.lane; i < 16 * R * packs_of_row; i += warp) {
    const unsigned row = i / packs_of_row;
    const unsigned column = i % packs_of_row * pack_elements;
    if (first + row >= to.end) continue;
    const T* const from = room + row * row_stride<width> + column;
    T* const place = to.row(first + row) + column;
    if (to.packs) {
      if (column < to.columns) *reinterpret_cast<Pack<T, pack_elements>*>(place) = *reinterpret_cast<const Pack<T, pack_elements>*>(from);
    } else {
#pragma unroll 1
      for (unsigned k = 0; k < pack_elements && column + k < to.columns; ++k) place[k] = from[k];
    }
  }
}

__device__ inline float quad_sum(float value) {
  value = value + __shfl_xor_sync(whole_warp, value, 1);
  return value + __shfl_xor_sync(whole_warp, value, 2);
}
__device__ inline float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(whole_warp, value, 1));
  return fmaxf(value, __shfl_xor_sync(whole_warp, value, 2));
}

// The running softmax of a warp's queries.
template <unsigned R>
struct RunningSoftmax {
  float largest[R][2];
  float sum[R][2] = {};  // of the lane's keys

  __device__ RunningSoftmax() {
    for (auto& of_sixteen : largest) of_sixteen[0] = of_sixteen[1] = -INFINITY;
  }

  // Scores become exponentials, and what was summed up so far refers to the largest of them. `factor`: of scores, to the
  // base of 2.
  template <unsigned N, unsigned M>
  __device__ void take(Sums<R, N>& scores, float factor, Sums<R, M>& out) {
#pragma unroll
    for (unsigned r = 0; r < R; ++r) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        float above = largest[r][half];
        for (unsigned n = 0; n < N; ++n) {
          above = fmaxf(above, fmaxf(scores[r][n][2 * half], scores[r][n][2 * half + 1]));
        }
        above = quad_max(above);
        const float shift = above == -INFINITY ? 0.0f : above;  // no key of this query was finite so far
        const float shrink = power_of_two((largest[r][half] - shift) * factor);
        largest[r][half] = above;
        float part = sum[r][half] * shrink;
        for (unsigned n = 0; n < M; ++n) {
          for (unsigned i = 2 * half; i < 2 * half + 2; ++i) out[r][n][i] = out[r][n][i] * shrink;
        }
        for (unsigned n = 0; n < N; ++n) {
          for (unsigned i = 2 * half; i < 2 * half + 2; ++i) {
            scores[r][n][i] = power_of_two(fmaf(scores[r][n][i], factor, -shift * factor));
            part = part + scores[r][n][i];
          }
        }
        sum[r][half] = part;
      }
    }
  }
};

// Which keys of a tile its queries keep: a byte for each query and counter of the mask, a bit in it for each of the
// counter's four keys. Two tiles take turns.
template <bool dropping, unsigned queries, unsigned keys>
struct KeptKeys {
  static constexpr unsigned bytes = kept_bytes<dropping, queries, keys>;
  unsigned char* tile;
  float scale;

  __device__ KeptKeys(SharedParts& parts, const AttentionTiles& a)
      : tile(parts.take<unsigned char>(bytes)), scale(a.mask.scale) {}

  // first_key: a multiple of 64. Seen after a barrier.
  __device__ void form(const AttentionTiles& a, const TileOfHead& at, unsigned first_query, unsigned first_key,
                       unsigned stage) const {
    if constexpr (dropping) {
#pragma unroll 1
      for (unsigned i = threadIdx.x; i < queries * kept_counters<keys>; i += tile_threads) {
        const std::uint64_t row = mask_row_of(a, at, first_query + i / kept_counters<keys>);
        constexpr unsigned words = mask_words;
        float factors[words];
        mask_factors(a.mask, row, first_key / words + i % kept_counters<keys>, factors);
        unsigned kept = 0;
        for (unsigned word = 0; word < words; ++word) kept |= factors[word] == 0.0f ? 0u : 1u << word;
        tile[stage * queries * kept_counters<keys> + i] = static_cast<unsigned char>(kept);
      }
    }
  }

  __device__ float factor(unsigned stage, unsigned query, unsigned key) const {
    if constexpr (dropping) {
      constexpr unsigned lanes = mask_lanes;
      const unsigned kept = tile[(stage * queries + query) * kept_counters<keys> + key / 64 * lanes + key % lanes];
      return (kept >> key / lanes % 4 & 1) != 0 ? scale : 0.0f;
    } else {
      return 1.0f;
    }
  }
};

template <typename T>
__device__ HeadRows<const T> qkv_rows(const AttentionTiles& a, const TileOfHead& at, unsigned part, bool packs) {
  return {part_of_qkv(static_cast<const T*>(a.qkv), a, at, part), static_cast<unsigned>(3 * a.heads * a.head_dim),
          static_cast<unsigned>(a.sequence), static_cast<unsigned>(a.head_dim), packs};
}
template <typename T>
__device__ HeadRows<T> gradient_rows(const AttentionTiles& a, const TileOfHead& at, unsigned part, bool packs) {
  return {part_of_qkv(static_cast<T*>(a.dqkv), a, at, part), static_cast<unsigned>(3 * a.heads * a.head_dim),
          static_cast<unsigned>(a.sequence), static_cast<unsigned>(a.head_dim), packs};
}
// Returns rows of a matrix with `rows` rows for each sequence: out or its gradient.
template <typename T>
__device__ HeadRows<T> out_rows(T* out, const AttentionTiles& a, const TileOfHead& at, std::size_t rows, bool packs) {
  const std::size_t dim = a.heads * a.head_dim;
  return {out + at.sequence * rows * dim + at.head * a.head_dim, static_cast<unsigned>(dim),
          static_cast<unsigned>(rows), static_cast<unsigned>(a.head_dim), packs};
}

// Tiles of `walked` rows of two matrices, copied one step ahead.
template <unsigned width, typename T>
struct WalkedTiles {
  static constexpr unsigned tile = walked * row_stride<width>;
  T* tiles;  // [2 stages, 2 matrices]

  __device__ explicit WalkedTiles(SharedParts& parts) : tiles(parts.take<T>(4 * tile)) {}
  __device__ T* first(unsigned stage) const { return tiles + 2 * stage * tile; }
  __device__ T* second(unsigned stage) const { return first(stage) + tile; }
  __device__ void load(const HeadRows<const T> (&from)[2], unsigned row, unsigned stage) const {
    load_tile<walked, width>(from[0], row, first(stage));
    load_tile<walked, width>(from[1], row, second(stage));
  }
};

template <typename T, unsigned width, bool dropping>
__global__ void __launch_bounds__(tile_threads, 2) forward_tiles(const AttentionTiles a, bool packs) {
  constexpr unsigned R = forward_extent<width, dropping>.sixteens;
  constexpr unsigned rows = block_rows<R>;
  constexpr unsigned columns = forward_extent<width, dropping>.columns;
  const Lane lane;
  const TileOfHead at(a, (a.queries + rows - 1) / rows, true);
  SharedParts parts;
  T* const q = parts.take<T>(rows * row_stride<width>);
  const WalkedTiles<width, T> kv(parts);
  const KeptKeys<dropping, rows, walked> kept(parts, a);
  const HeadRows<const T> walk[2] = {qkv_rows<T>(a, at, 1, packs), qkv_rows<T>(a, at, 2, packs)};
  const unsigned first_wanted = static_cast<unsigned>(a.sequence - a.queries);
  const unsigned first = first_wanted + at.tile * rows;
  const KnownKeys known(a);
  const unsigned end = known.of(first + rows - 1);
  const unsigned own = lane.warp_of_block * 16 * R;  // the warp's rows begin there
  T* const own_q = q + own * row_stride<width>;
  load_tile<rows, width>(qkv_rows<T>(a, at, 0, packs), first, q);
  kv.load(walk, 0, 0);
  Sums<R, width / 8> out = {};
  RunningSoftmax<R> softmax;
  const float factor = a.scale * log2_of_e;
  for (unsigned tile = 0, stage = 0; tile < end; tile += walked, stage ^= 1) {
    kept.form(a, at, first, tile, stage);
    await_copies();
    __syncthreads();
    if (tile + walked < end) kv.load(walk, tile + walked, stage ^ 1);
#pragma unroll 1
    for (unsigned part = 0; part < walked; part += columns) {
      const unsigned key = tile + part;
      if (first + own >= a.sequence || key >= known.of(first + own + 16 * R - 1)) break;  // nothing that a query knows
      Sums<R, columns / 8> scores = {};
      multiply_transposed<width>(own_q + lane.across<width>(),
                                 kv.first(stage) + part * row_stride<width> + lane.along<width>(), scores);
      if (key + columns > known.of(first + own)) {
        for_each(scores, [&](unsigned r, unsigned n, unsigned i) {
          if (key + lane.column(n, i) >= known.of(first + own + lane.row(r, i))) scores[r][n][i] = -INFINITY;
        });
      }
      softmax.take(scores, factor, out);
      for_each(scores, [&](unsigned r, unsigned n, unsigned i) {
        scores[r][n][i] = scores[r][n][i] * kept.factor(stage, own + lane.row(r, i), part + lane.column(n, i));
      });
      add_products<width>(scores, kv.second(stage) + part * row_stride<width> + lane.across<width>(), out);
    }
  }
  for (auto& of_sixteen : softmax.sum) {
    for (float& sum : of_sixteen) sum = quad_sum(sum);
  }
  store_rows<width>(lane, out, [&](unsigned r, unsigned i) { return 1.0f / softmax.sum[r][i / 2]; }, own_q,
                    out_rows(static_cast<T*>(a.out), a, at, a.queries, packs), first - first_wanted + own);
  if (a.statistics == nullptr || lane.lane % 4 != 0) return;
  for (unsigned r = 0; r < R; ++r) {
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned query = first + own + lane.row(r, 2 * half);
      if (query >= a.sequence) continue;
      a.statistics[statistic_of(a, at) + query] =
          fmaf(softmax.largest[r][half], a.scale, logf(softmax.sum[r][half]));
    }
  }
}

// From scores and gradients of probabilities to probabilities, dropped ones 0, and gradients of scores. Of the row's
// query: `logarithm` of its sum of exponentials to the base of 2, and `delta`; and what the mask does to the place.
struct Place {
  float logarithm;
  float delta;
  float kept;
};
template <unsigned R, unsigned N, typename Of>
__device__ void form_gradients(Sums<R, N>& scores, Sums<R, N>& gradients, float factor, const Of& of) {
  for_each(scores, [&](unsigned r, unsigned n, unsigned i) {
    const Place place = of(r, n, i);
    const float p = power_of_two(fmaf(scores[r][n][i], factor, -place.logarithm));
    scores[r][n][i] = p * place.kept;
    gradients[r][n][i] = p * fmaf(gradients[r][n][i], place.kept, -place.delta);
  });
}

template <typename T, unsigned width, bool dropping>
__global__ void __launch_bounds__(tile_threads, 2) query_gradients(const AttentionTiles a, bool packs) {
  constexpr unsigned R = gradient_extent<width, dropping>.sixteens;
  constexpr unsigned rows = block_rows<R>;
  constexpr unsigned columns = gradient_extent<width, dropping>.columns;
  const Lane lane;
  const TileOfHead at(a, (a.sequence + rows - 1) / rows, true);
  SharedParts parts;
  T* const q = parts.take<T>(rows * row_stride<width>);
  T* const dout = parts.take<T>(rows * row_stride<width>);
  const WalkedTiles<width, T> kv(parts);
  const KeptKeys<dropping, rows, walked> kept(parts, a);
  const HeadRows<const T> walk[2] = {qkv_rows<T>(a, at, 1, packs), qkv_rows<T>(a, at, 2, packs)};
  const unsigned sequence = static_cast<unsigned>(a.sequence);
  const unsigned first = at.tile * rows;
  const KnownKeys known(a);
  const unsigned end = known.of(first + rows - 1);
  const unsigned own = lane.warp_of_block * 16 * R;
  T* const own_q = q + own * row_stride<width>;
  const T* const own_dout = dout + own * row_stride<width>;
  load_tile<rows, width>(qkv_rows<T>(a, at, 0, packs), first, q);
  load_tile<rows, width>(out_rows(static_cast<const T*>(a.dout), a, at, a.sequence, packs), first, dout);
  kv.load(walk, 0, 0);
  float logarithms[R][2];
  float deltas[R][2];
  for (unsigned r = 0; r < R; ++r) {
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned query = first + own + lane.row(r, 2 * half);
      const std::size_t place = statistic_of(a, at) + query;
      logarithms[r][half] = query < sequence ? a.statistics[place] * log2_of_e : 0.0f;
      deltas[r][half] = query < sequence ? a.deltas[place] : 0.0f;
    }
  }
  Sums<R, width / 8> dq = {};
  const float factor = a.scale * log2_of_e;
  for (unsigned tile = 0, stage = 0; tile < end; tile += walked, stage ^= 1) {
    kept.form(a, at, first, tile, stage);
    await_copies();
    __syncthreads();
    if (tile + walked < end) kv.load(walk, tile + walked, stage ^ 1);
#pragma unroll 1
    for (unsigned part = 0; part < walked; part += columns) {
      const unsigned key = tile + part;
      if (first + own >= sequence || key >= known.of(first + own + 16 * R - 1)) break;
      const T* const k = kv.first(stage) + part * row_stride<width>;
      const T* const v = kv.second(stage) + part * row_stride<width>;
      Sums<R, columns / 8> scores = {};
      Sums<R, columns / 8> gradients = {};
      multiply_transposed<width>(own_q + lane.across<width>(), k + lane.along<width>(), scores);
      multiply_transposed<width>(own_dout + lane.across<width>(), v + lane.along<width>(), gradients);
      if (key + columns > known.of(first + own)) {
        for_each(scores, [&](unsigned r, unsigned n, unsigned i) {
          if (key + lane.column(n, i) >= known.of(first + own + lane.row(r, i))) scores[r][n][i] = -INFINITY;
        });
      }
      form_gradients(scores, gradients, factor, [&](unsigned r, unsigned n, unsigned i) {
        return Place{logarithms[r][i / 2], deltas[r][i / 2],
                     kept.factor(stage, own + lane.row(r, i), part + lane.column(n, i))};
      });
      add_products<width>(gradients, k + lane.across<width>(), dq);
    }
  }
  store_rows<width>(lane, dq, [&](unsigned, unsigned) { return a.scale; }, own_q, gradient_rows<T>(a, at, 0, packs),
                    first + own);
}

// This is query_gradients() on the transposed tiles: rows are keys, columns queries. Queries beyond the sequence add
// zeros, since their rows of q and dout are.
template <typename T, unsigned width, bool dropping>
__global__ void __launch_bounds__(tile_threads, 2) key_gradients(const AttentionTiles a, bool packs) {
  constexpr unsigned R = gradient_extent<width, dropping>.sixteens;
  constexpr unsigned rows = block_rows<R>;
  constexpr unsigned columns = gradient_extent<width, dropping>.columns;
  const Lane lane;
  const TileOfHead at(a, (a.sequence + rows - 1) / rows, false);
  SharedParts parts;
  T* const k = parts.take<T>(rows * row_stride<width>);
  T* const v = parts.take<T>(rows * row_stride<width>);
  const WalkedTiles<width, T> queries(parts);
  float* const numbers = parts.take<float>(4 * walked);  // [2 stages, statistics and deltas]
  const KeptKeys<dropping, walked, rows> kept(parts, a);
  const HeadRows<const T> walk[2] = {qkv_rows<T>(a, at, 0, packs),
                                     out_rows(static_cast<const T*>(a.dout), a, at, a.sequence, packs)};
  const unsigned sequence = static_cast<unsigned>(a.sequence);
  const auto load_walked = [&](unsigned query, unsigned stage) {
    queries.load(walk, query, stage);
    const float* const from = (threadIdx.x < walked ? a.statistics : a.deltas) + statistic_of(a, at);
    const unsigned place = query + threadIdx.x % walked;
    copy_async<4>(numbers + 2 * walked * stage + threadIdx.x, from + place, place < sequence);
  };
  static_assert(tile_threads == 2 * walked);
  const unsigned first = at.tile * rows;
  const unsigned own = lane.warp_of_block * 16 * R;
  T* const own_k = k + own * row_stride<width>;
  T* const own_v = v + own * row_stride<width>;
  load_tile<rows, width>(qkv_rows<T>(a, at, 1, packs), first, k);
  load_tile<rows, width>(qkv_rows<T>(a, at, 2, packs), first, v);
  const unsigned begin = a.causal ? first : 0;
  load_walked(begin, 0);
  Sums<R, width / 8> dk = {};
  Sums<R, width / 8> dv = {};
  const float factor = a.scale * log2_of_e;
  for (unsigned tile = begin, stage = 0; tile < sequence; tile += walked, stage ^= 1) {
    kept.form(a, at, tile, first, stage);
    await_copies();
    __syncthreads();
    if (tile + walked < sequence) load_walked(tile + walked, stage ^ 1);
    const float* const statistics = numbers + 2 * walked * stage;
    const float* const deltas = statistics + walked;
#pragma unroll 1
    for (unsigned part = 0; part < walked; part += columns) {
      const unsigned query = tile + part;
      if (first + own >= sequence) break;
      if (a.causal && query + columns <= first + own) continue;  // before all of the warp's keys
      const T* const q = queries.first(stage) + part * row_stride<width>;
      const T* const dout = queries.second(stage) + part * row_stride<width>;
      Sums<R, columns / 8> scores = {};
      Sums<R, columns / 8> gradients = {};
      multiply_transposed<width>(own_k + lane.across<width>(), q + lane.along<width>(), scores);
      multiply_transposed<width>(own_v + lane.across<width>(), dout + lane.along<width>(), gradients);
      if (a.causal && first + own + 16 * R > query + 1) {
        for_each(scores, [&](unsigned r, unsigned n, unsigned i) {
          if (first + own + lane.row(r, i) > query + lane.column(n, i)) scores[r][n][i] = -INFINITY;
        });
      }
      form_gradients(scores, gradients, factor, [&](unsigned r, unsigned n, unsigned i) {
        const unsigned column = part + lane.column(n, i);
        return Place{statistics[column] * log2_of_e, deltas[column],
                     kept.factor(stage, column, own + lane.row(r, i))};
      });
      add_products<width>(scores, dout + lane.across<width>(), dv);
      add_products<width>(gradients, q + lane.across<width>(), dk);
    }
  }
  store_rows<width>(lane, dk, [&](unsigned, unsigned) { return a.scale; }, own_k, gradient_rows<T>(a, at, 1, packs),
                    first + own);
  store_rows<width>(lane, dv, [](unsigned, unsigned) { return 1.0f; }, own_v, gradient_rows<T>(a, at, 2, packs),
                    first + own);
}

template <typename Kernel>
void launch_tiles(void* native, const AttentionTiles& a, std::size_t rows, const BlockSizes& block, Kernel kernel) {
  const std::size_t blocks = (rows + block.rows - 1) / block.rows * a.sequences * a.heads;
  const auto on_packs = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
  const bool packs =
      a.head_dim % pack_elements == 0 && on_packs(a.qkv) && on_packs(a.out) && on_packs(a.dout) && on_packs(a.dqkv);
  allow_shared(reinterpret_cast<const void*>(kernel), block.shared_bytes);
  launch(native,
         {.blocks = dim3(static_cast<unsigned>(blocks)), .threads = tile_threads, .shared_bytes = block.shared_bytes},
         kernel, a, packs);
}

template <typename T, unsigned width, bool dropping>
struct Kernels {
  static_assert(key_gradients_block<width, dropping>.shared_bytes <= most_shared_bytes);  // the most of the three

  static void forward(void* native, const AttentionTiles& a) {
    launch_tiles(native, a, a.queries, forward_block<width, dropping>, forward_tiles<T, width, dropping>);
  }
  static void backward(void* native, const AttentionTiles& a) {
    launch_tiles(native, a, a.sequence, query_gradients_block<width, dropping>, query_gradients<T, width, dropping>);
    launch_tiles(native, a, a.sequence, key_gradients_block<width, dropping>, key_gradients<T, width, dropping>);
  }
};

// function(Kernels<…>{}) for the type, the narrowest width that holds a head, and whether anything is dropped.
template <typename Function>
void with_kernels(const AttentionTiles& a, const Function& function) {
  const auto of_width = [&]<typename T, unsigned width>() {
    drops(a) ? function(Kernels<T, width, true>{}) : function(Kernels<T, width, false>{});
  };
  const auto of_type = [&]<typename T>() {
    a.head_dim <= 64 ? of_width.template operator()<T, 64>() : of_width.template operator()<T, 128>();
  };
  a.format == Format::bf16 ? of_type.template operator()<__nv_bfloat16>() : of_type.template operator()<__half>();
}

}  // namespace

void tensor_attention_forward(void* native, const AttentionTiles& a) {
  with_kernels(a, [&](auto kernels) { kernels.forward(native, a); });
}

void tensor_attention_backward(void* native, const AttentionTiles& a) {
  with_kernels(a, [&](auto kernels) { kernels.backward(native, a); });
}

}  // namespace tessera::nn::cuda
