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
      .format = sum.type == DType::int8 ? Format::fp32 : format_of(sum.type),
      .result = sum.result,
      .count = sum.count,
      .accumulate = sum.accumulate,
      .divisor = sum.divisor,
  };
}

void require_valid(const RankedSum& sum, std::size_t ranks) {
  if (ranks == 0) throw UsageError("a sum over ranks needs the contribution of at least one rank");
  if (sum.count % block_of(sum.type) == 0) return;
  throw UsageError(fmt::format("a sum of {} elements is not of whole blocks of {}", sum.count, to_string(sum.type)));
}

}  // namespace

void ranked_sum_cpu(const RankedSum& sum) {
  require_valid(sum, sum.contributions.size());
  const auto run = sum.type == DType::int8 ? active_table().ranked_sum_of_codes : active_table().ranked_sum;
  run(arguments_of(sum));
}

void ranked_sum_cuda(void* native, const RankedSum& sum) {
  require_valid(sum, sum.contributions.size());
  if (sum.contributions.size() > cuda::most_contributions) {
    throw UsageError(fmt::format("a sum over {} ranks by pointers: a CUDA device takes {} at most",
                                 sum.contributions.size(), cuda::most_contributions));
  }
  cuda::ranked_sum(native, arguments_of(sum), sum.type == DType::int8);
}

void ranked_sum_cuda(void* native, const RankedSum& sum, const StridedContributions& contributions) {
  require_valid(sum, contributions.ranks);
  RankedSumArguments arguments = arguments_of(sum);
  arguments.ranks = contributions.ranks;
  cuda::strided_ranked_sum(native, arguments, contributions, sum.type == DType::int8);
}

void copy_cpu(void* to, const void* from, Bytes size) {
  if (size != Bytes(0)) active_table().copy(to, from, size.count());
}

}  // namespace tessera::kernels
