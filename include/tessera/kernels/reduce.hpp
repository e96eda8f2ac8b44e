// Sums over ranks, in rank order, in fp32 (numerics.md, "sum over ranks"). Communicators call them from tasks of their
// own streams: on the CPU they run on the calling thread, for a CUDA device they enqueue to the task's CUDA stream.
#pragma once

#include <cstddef>
#include <span>

#include "tessera/base/bytes.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/kernels/accumulate.hpp"

#pragma GCC visibility push(default)

namespace tessera::kernels {

struct RankedSum {
  std::span<const void* const> contributions;  // one pointer per rank, in rank order, `count` elements of `type` each
  DType type = DType::fp32;                    // int8: `count` is of whole blocks
  float* result = nullptr;  // fp32, `count` elements; may be one of the contributions when type is fp32
  std::size_t count = 0;
  Accumulate accumulate = Accumulate::no;
  float divisor = 1.0f;  // divides once, at the end
};

// With the contributions c0, c1, … of each element,
//   result = ((c0 + c1) + …) / divisor,
//   Accumulate::sum: (result + ((c0 + c1) + …)) / divisor,
//   Accumulate::terms: (((result + c0) + c1) + …) / divisor.
// A contribution of −0 leaves every sum as it is. Reads each contribution once.
void ranked_sum_cpu(const RankedSum& sum);

// The same on a CUDA device; `native` is a cudaStream_t. Does not synchronise. `contributions` is read before it
// returns and has at most 64 of them; more is a UsageError.
void ranked_sum_cuda(void* native, const RankedSum& sum);

// The same for any number of contributions that stand at equal distances: that of rank r begins r * stride after
// `first`. sum.contributions is not read.
struct StridedContributions {
  const void* first;
  Bytes stride;  // whole elements
  std::size_t ranks;
};
void ranked_sum_cuda(void* native, const RankedSum& sum, const StridedContributions& contributions);

// memcpy on the calling thread; where the copy is larger than a core's own caches, past them.
void copy_cpu(void* to, const void* from, Bytes size);

}  // namespace tessera::kernels

#pragma GCC visibility pop
