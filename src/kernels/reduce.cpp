// The sum over ranks on the calling thread.
#include "tessera/kernels/reduce.hpp"

#include "kernels/active_table.hpp"
#include "tessera/base/error.hpp"

namespace tessera::kernels {

void ranked_sum_cpu(const RankedSum& sum) {
  if (sum.contributions.empty()) throw UsageError("a sum over ranks needs the contribution of at least one rank");
  active_table().ranked_sum({
      .contributions = sum.contributions.data(),
      .ranks = sum.contributions.size(),
      .format = format_of(sum.type),
      .result = sum.result,
      .count = sum.count,
      .accumulate = sum.accumulate,
      .divisor = sum.divisor,
  });
}

}  // namespace tessera::kernels
