// The sum over ranks, on the calling thread or the CUDA stream that it issues to.
#include "tessera/kernels/reduce.hpp"

#include <fmt/format.h>

#include "kernels/cuda/cuda_table.hpp"
#include "kernels/dispatch.hpp"
#include "tessera/base/error.hpp"

namespace tessera::kernels {

namespace {

RankedSumArguments arguments_of(const RankedSum& sum) {
  return {
      .contributions = sum.contributions.data(),
      .ranks = sum.contributions.size(),
      .format = format_of(sum.type),
      .result = sum.result,
      .count = sum.count,
      .accumulate = sum.accumulate,
      .divisor = sum.divisor,
  };
}

void require_some(std::size_t ranks) {
  if (ranks == 0) throw UsageError("a sum over ranks needs the contribution of at least one rank");
}

}  // namespace

void ranked_sum_cpu(const RankedSum& sum) {
  require_some(sum.contributions.size());
  active_table().ranked_sum(arguments_of(sum));
}

void ranked_sum_cuda(void* native, const RankedSum& sum) {
  require_some(sum.contributions.size());
  if (sum.contributions.size() > cuda::most_contributions) {
    throw UsageError(fmt::format("a sum over {} ranks by pointers: a CUDA device takes {} at most",
                                 sum.contributions.size(), cuda::most_contributions));
  }
  cuda::ranked_sum(native, arguments_of(sum));
}

void ranked_sum_cuda(void* native, const RankedSum& sum, const StridedContributions& contributions) {
  require_some(contributions.ranks);
  RankedSumArguments arguments = arguments_of(sum);
  arguments.ranks = contributions.ranks;
  cuda::strided_ranked_sum(native, arguments, contributions.first, contributions.stride);
}

void copy_cpu(void* to, const void* from, Bytes size) {
  if (size != Bytes(0)) active_table().copy(to, from, size.count());
}

}  // namespace tessera::kernels
