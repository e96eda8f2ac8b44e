// Sums over ranks, in rank order, in fp32 (numerics.md, "sum over ranks"). Runs on the calling thread: communicators
// call it from their own streams.
#pragma once

#include <cstddef>
#include <span>

#include "tessera/base/dtype.hpp"

namespace tessera::kernels {

struct RankedSum {
  std::span<const void* const> contributions;  // one pointer per rank, in rank order, `count` elements of `type` each
  DType type = DType::fp32;
  float* result = nullptr;  // fp32, `count` elements; may be one of the contributions when type is fp32
  std::size_t count = 0;
  bool accumulate = false;  // add the sum to `result` instead of replacing it
  float divisor = 1.0f;     // divides once, at the end
};

// result[i] = ((contribution[0][i] + contribution[1][i]) + ...) / divisor, and with `accumulate`
// (result[i] + that sum) / divisor. Reads each contribution once.
void ranked_sum_cpu(const RankedSum& sum);

}  // namespace tessera::kernels
