// The CPU kernels for any instruction set, from its vector type.
#pragma once

#include "kernels/cpu/adamw8bit_of_lanes.hpp"
#include "kernels/cpu/blocks.hpp"
#include "kernels/cpu/codes_of_lanes.hpp"
#include "kernels/cpu/rounding_of_lanes.hpp"
#include "kernels/cpu/updates_of_lanes.hpp"
#include "kernels/exact_arithmetic.hpp"

namespace tessera::kernels {

// ---- cast, copy, accumulate and divide ----

// Bytes ahead of a pass that memory is asked for: what processors fetch by themselves ends with a page, and the end of
// a block of the norm would hold up the next one's reads.
inline constexpr std::size_t prefetched_bytes = 4096;

template <typename Lanes, Format to, Format from>
void cast_in_caches(const CastArguments& a) {
  for_each_block(
      a.count, [&](std::size_t at, std::size_t n)
                   __attribute__((always_inline)) { write<Lanes, to>(a.to, at, n, read<Lanes, from>(a.from, at, n)); });
}

// Two vectors a round: a whole line of 16-bit results goes out by one store.
template <typename Lanes, Format to, Format from>
void cast_past_caches(const CastArguments& a) {
  constexpr std::size_t step = 2 * lane_count;
  const auto* const source = static_cast<const typename Storage<from>::Element*>(a.from);
  auto* const target = static_cast<typename Storage<to>::Element*>(a.to);
  std::size_t at = 0;
  for (; at + step <= a.count; at += step) {
    for (std::size_t ahead = 0; ahead < step * sizeof *source; ahead += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(source + at) + prefetched_bytes + ahead);
    const Lanes first = read_whole<Lanes, from>(source + at);
    const Lanes second = read_whole<Lanes, from>(source + at + lane_count);
    if constexpr (to == Format::fp32) {
      first.stream(target + at);
      second.stream(target + at + lane_count);
    }
    if constexpr (to == Format::bf16) Lanes::stream_bf16(target + at, first, second);
    if constexpr (to == Format::fp16) Lanes::stream_fp16(target + at, first, second);
  }
  Lanes::fence();
  cast_in_caches<Lanes, to, from>({target + at, to, source + at, from, a.count - at});
}

template <typename Lanes, Format to, Format from>
void cast_between(const CastArguments& a) {
  const bool past_caches = streams(a.to, a.count * sizeof(typename Storage<to>::Element));
  past_caches ? cast_past_caches<Lanes, to, from>(a) : cast_in_caches<Lanes, to, from>(a);
}

template <typename Lanes, Format to>
void cast_to(const CastArguments& a) {
  switch (a.from_format) {
    case Format::fp32: return cast_between<Lanes, to, Format::fp32>(a);
    case Format::bf16: return cast_between<Lanes, to, Format::bf16>(a);
    case Format::fp16: return cast_between<Lanes, to, Format::fp16>(a);
  }
}

template <typename Lanes>
void cast_lanes(const CastArguments& a) {
  switch (a.to_format) {
    case Format::fp32: return cast_to<Lanes, Format::fp32>(a);
    case Format::bf16: return cast_to<Lanes, Format::bf16>(a);
    case Format::fp16: return cast_to<Lanes, Format::fp16>(a);
  }
}

// Bits as they are: a load and a store change none.
template <typename Lanes>
void copy_lanes(void* to, const void* from, std::size_t bytes) {
  if (!streams(to, bytes)) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  const std::size_t whole = bytes / sizeof(float) / lane_count * lane_count;
  auto* const target = static_cast<float*>(to);
  auto* const source = static_cast<const float*>(from);
  for (std::size_t at = 0; at < whole; at += lane_count) Lanes::load(source + at).stream(target + at);
  Lanes::fence();
  __builtin_memcpy(target + whole, source + whole, bytes - whole * sizeof(float));
}

template <typename Lanes, Format from>
void accumulate_from(const AccumulateArguments& a) {
  for_each_block(
      a.count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        write(a.to, at, n, read<Lanes>(a.to, at, n) + read<Lanes, from>(a.from, at, n));
      });
}

template <typename Lanes>
void accumulate_lanes(const AccumulateArguments& a) {
  switch (a.from_format) {
    case Format::fp32: return accumulate_from<Lanes, Format::fp32>(a);
    case Format::bf16: return accumulate_from<Lanes, Format::bf16>(a);
    case Format::fp16: return accumulate_from<Lanes, Format::fp16>(a);
  }
}

template <typename Lanes>
void divide_lanes(float* data, float divisor, std::size_t count) {
  const Lanes by = Lanes::all(divisor);
  for_each_block(
      count, [&](std::size_t at, std::size_t n)
                 __attribute__((always_inline)) { write(data, at, n, read<Lanes>(data, at, n) / by); });
}

// ---- the sum of squares, in norm.hpp's order: a square is rounded before it is added ----

// norm_block and norm_lanes of norm.hpp, which this file may not include; norm.cpp asserts that they agree.
inline constexpr std::size_t norm_block_elements = 1024;
inline constexpr std::size_t norm_fp64_lanes = 8192;

template <typename Lanes, Format format>
float block_sum_of_squares(const typename Storage<format>::Element* data, std::size_t count) {
  Lanes sum = Lanes::all(0.0f);
  for_each_block(
      count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        __builtin_prefetch(reinterpret_cast<const char*>(data + at) + prefetched_bytes);
        const Lanes x = read<Lanes, format>(data, at, n);
        sum = sum + x * x;
      });
  return sum.pairwise_sum();
}

template <typename Lanes, Format format>
void add_blocks_of(const NormArguments& a, std::size_t first, std::size_t last, double* lane) {
  const auto* const data = static_cast<const typename Storage<format>::Element*>(a.data);
  for (std::size_t row = 0; (row + first) * norm_block_elements < a.count; row += norm_fp64_lanes) {
    for (std::size_t k = first; k < last; ++k) {
      const std::size_t at = (row + k) * norm_block_elements;
      if (at >= a.count) break;
      const std::size_t n = a.count - at < norm_block_elements ? a.count - at : norm_block_elements;
      lane[k] += static_cast<double>(block_sum_of_squares<Lanes, format>(data + at, n));
    }
  }
}

template <typename Lanes>
void add_blocks_lanes(const NormArguments& a, std::size_t first, std::size_t last, double* lane) {
  switch (a.format) {
    case Format::fp32: return add_blocks_of<Lanes, Format::fp32>(a, first, last, lane);
    case Format::bf16: return add_blocks_of<Lanes, Format::bf16>(a, first, last, lane);
    case Format::fp16: return add_blocks_of<Lanes, Format::fp16>(a, first, last, lane);
  }
}

// ---- the exact sum of squares (kernels/exact_squares.hpp). A chunk stays in the nearest cache: the first pass over it
// finds the bin that its largest square belongs to, and the second one cuts all squares from that bin down ----

inline constexpr std::size_t exact_chunk = 2048;

template <typename Lanes, Format format>
ExactSquares exact_squares_of_chunk(const typename Storage<format>::Element* data, std::size_t count) {
  Lanes magnitudes = Lanes::all(0.0f);
  for_each_block(
      count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        __builtin_prefetch(reinterpret_cast<const char*>(data + at) + prefetched_bytes);
        magnitudes = larger_magnitudes(magnitudes, read<Lanes, format>(data, at, n));
      });
  const std::int64_t top = top_of(largest_of(magnitudes));
  if (!has_bins(top)) return {top, {}};
  typename Lanes::Slices slices(rounders_of(top));
  for_each_block(
      count, [&](std::size_t at, std::size_t n)
                 __attribute__((always_inline)) { slices.add(read<Lanes, format>(data, at, n)); });
  std::uint64_t sums[3];
  slices.store(sums);
  return sum_of_slices(top, sums, (count + lane_count - 1) / lane_count * lane_count);
}

template <typename Lanes, Format format>
ExactSquares exact_squares_of(const typename Storage<format>::Element* data, std::size_t count) {
  ExactSquares sum{};
  for (std::size_t at = 0; at < count; at += exact_chunk) {
    add_exactly(sum,
                exact_squares_of_chunk<Lanes, format>(data + at, count - at < exact_chunk ? count - at : exact_chunk));
  }
  return sum;
}

template <typename Lanes>
ExactSquares exact_squares_lanes(const NormArguments& a) {
  using Halves = const std::uint16_t*;
  switch (a.format) {
    case Format::fp32: return exact_squares_of<Lanes, Format::fp32>(static_cast<const float*>(a.data), a.count);
    case Format::bf16: return exact_squares_of<Lanes, Format::bf16>(static_cast<Halves>(a.data), a.count);
    case Format::fp16: return exact_squares_of<Lanes, Format::fp16>(static_cast<Halves>(a.data), a.count);
  }
  return {};
}

// ---- the sum over ranks: a block's sum stays in registers until every rank's part was added, so each contribution is
// read once and `result` may be one of them ----

template <typename Lanes, typename Brought>
[[gnu::always_inline]] inline Lanes begun(const RankedSumArguments& a, std::size_t at, std::size_t n) {
  const Lanes first = Brought::read(a.contributions[0], at, n);
  return a.accumulate == Accumulate::terms ? read<Lanes>(a.result, at, n) + first : first;
}

// `vectors` vectors from `at` on; each of `n` elements, so n < lane_count only with one vector.
template <typename Lanes, typename Brought, std::size_t vectors, bool past_caches>
[[gnu::always_inline]] inline void sum_block(const RankedSumArguments& a, std::size_t at, std::size_t n) {
  Lanes sum[vectors];
  for (std::size_t v = 0; v < vectors; ++v) sum[v] = begun<Lanes, Brought>(a, at + v * lane_count, n);
  for (std::size_t rank = 1; rank < a.ranks; ++rank) {
    for (std::size_t v = 0; v < vectors; ++v) {
      sum[v] = sum[v] + Brought::read(a.contributions[rank], at + v * lane_count, n);
    }
  }
  for (std::size_t v = 0; v < vectors; ++v) {
    const std::size_t here = at + v * lane_count;
    if (a.accumulate == Accumulate::sum) sum[v] = read<Lanes>(a.result, here, n) + sum[v];
    if (a.divisor != 1.0f) sum[v] = sum[v] / Lanes::all(a.divisor);
    write_result<Lanes, Format::fp32, past_caches>(a.result, here, n, sum[v]);
  }
}

template <typename Lanes, typename Brought, bool past_caches>
void ranked_sum_as(const RankedSumArguments& a) {
  constexpr std::size_t vectors = 4;
  std::size_t at = 0;
  for (; at + vectors * lane_count <= a.count; at += vectors * lane_count) {
    sum_block<Lanes, Brought, vectors, past_caches>(a, at, lane_count);
  }
  for (; at + lane_count <= a.count; at += lane_count) sum_block<Lanes, Brought, 1, past_caches>(a, at, lane_count);
  if (at < a.count) sum_block<Lanes, Brought, 1, past_caches>(a, at, a.count - at);
  if constexpr (past_caches) Lanes::fence();
}

// A result that is read before it is written is in the caches already.
template <typename Lanes>
bool sum_streams(const RankedSumArguments& a) {
  for (std::size_t rank = 0; rank < a.ranks; ++rank) {
    if (a.contributions[rank] == a.result) return false;
  }
  return a.accumulate == Accumulate::no && streams(a.result, a.count * sizeof(float));
}

template <typename Lanes, typename Brought>
void ranked_sum_of(const RankedSumArguments& a) {
  sum_streams<Lanes>(a) ? ranked_sum_as<Lanes, Brought, true>(a) : ranked_sum_as<Lanes, Brought, false>(a);
}

template <typename Lanes>
void ranked_sum_lanes(const RankedSumArguments& a) {
  switch (a.format) {
    case Format::fp32: return ranked_sum_of<Lanes, Elements<Lanes, Format::fp32>>(a);
    case Format::bf16: return ranked_sum_of<Lanes, Elements<Lanes, Format::bf16>>(a);
    case Format::fp16: return ranked_sum_of<Lanes, Elements<Lanes, Format::fp16>>(a);
  }
}

template <typename Lanes>
void ranked_sum_of_codes_lanes(const RankedSumArguments& a) {
  ranked_sum_of<Lanes, Codes<Lanes>>(a);
}

template <typename Lanes>
inline constexpr KernelTable table_of_lanes = {
    .cast = cast_lanes<Lanes>,
    .copy = copy_lanes<Lanes>,
    .accumulate = accumulate_lanes<Lanes>,
    .divide = divide_lanes<Lanes>,
    .add_blocks = add_blocks_lanes<Lanes>,
    .exact_squares = exact_squares_lanes<Lanes>,
    .encode = encode_lanes<Lanes>,
    .decode = decode_lanes<Lanes>,
    .ranked_sum = ranked_sum_lanes<Lanes>,
    .ranked_sum_of_codes = ranked_sum_of_codes_lanes<Lanes>,
    .adamw = adamw_lanes<Lanes>,
    .adamw8bit = adamw8bit_lanes<Lanes>,
    .sgd = sgd_lanes<Lanes>,
    .root_scaled = root_scaled_lanes<Lanes>,
    .round = round_lanes<Lanes>,
};

}  // namespace tessera::kernels
