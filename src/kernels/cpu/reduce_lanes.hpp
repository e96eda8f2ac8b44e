// The sum over ranks for any instruction set. A block's sum stays in registers until every rank's part was added, so
// each contribution is read once and `result` may be one of them.
#pragma once

#include "kernels/cpu/blocks.hpp"

namespace tessera::kernels {

// `vectors` vectors from `at` on; each of `n` elements, so n < lane_count only with one vector.
template <typename Lanes, Format format, std::size_t vectors, bool past_caches>
[[gnu::always_inline]] inline void sum_block(const RankedSumArguments& a, std::size_t at, std::size_t n) {
  Lanes sum[vectors];
  for (std::size_t v = 0; v < vectors; ++v) sum[v] = read<Lanes, format>(a.contributions[0], at + v * lane_count, n);
  for (std::size_t rank = 1; rank < a.ranks; ++rank) {
    for (std::size_t v = 0; v < vectors; ++v) {
      sum[v] = sum[v] + read<Lanes, format>(a.contributions[rank], at + v * lane_count, n);
    }
  }
  for (std::size_t v = 0; v < vectors; ++v) {
    const std::size_t here = at + v * lane_count;
    if (a.accumulate) sum[v] = read<Lanes>(a.result, here, n) + sum[v];
    if (a.divisor != 1.0f) sum[v] = sum[v] / Lanes::all(a.divisor);
    write_result<Lanes, Format::fp32, past_caches>(a.result, here, n, sum[v]);
  }
}

template <typename Lanes, Format format, bool past_caches>
void ranked_sum_as(const RankedSumArguments& a) {
  constexpr std::size_t vectors = 4;
  std::size_t at = 0;
  for (; at + vectors * lane_count <= a.count; at += vectors * lane_count) {
    sum_block<Lanes, format, vectors, past_caches>(a, at, lane_count);
  }
  for (; at + lane_count <= a.count; at += lane_count) sum_block<Lanes, format, 1, past_caches>(a, at, lane_count);
  if (at < a.count) sum_block<Lanes, format, 1, past_caches>(a, at, a.count - at);
  if constexpr (past_caches) Lanes::fence();
}

// A result that is read before it is written is in the caches already.
template <typename Lanes>
bool sum_streams(const RankedSumArguments& a) {
  for (std::size_t rank = 0; rank < a.ranks; ++rank) {
    if (a.contributions[rank] == a.result) return false;
  }
  return !a.accumulate && streams(a.result, a.count * sizeof(float));
}

template <typename Lanes, Format format>
void ranked_sum_of(const RankedSumArguments& a) {
  sum_streams<Lanes>(a) ? ranked_sum_as<Lanes, format, true>(a) : ranked_sum_as<Lanes, format, false>(a);
}

template <typename Lanes>
void ranked_sum_lanes(const RankedSumArguments& a) {
  switch (a.format) {
    case Format::fp32: return ranked_sum_of<Lanes, Format::fp32>(a);
    case Format::bf16: return ranked_sum_of<Lanes, Format::bf16>(a);
    case Format::fp16: return ranked_sum_of<Lanes, Format::fp16>(a);
  }
}

}  // namespace tessera::kernels
