// Adds up what the plan's reductions bring to a rank.
#include "plan/collective_memory.hpp"

#include <algorithm>

#include "plan/buckets.hpp"

namespace tessera::plan {

namespace {

Bytes part_of(const Plan& plan, std::size_t unit) {
  const Bytes part = size_of(wire_type(plan, unit)) * plan.layouts[unit].shard_elements(Part::trained);
  return round_up(part, staging_alignment);
}

Bytes parts_of(const Plan& plan, const Bucket& bucket) {
  Bytes sum;
  for (const std::size_t unit : bucket.units) sum += part_of(plan, unit) * plan.options.ranks;
  return sum;
}

}  // namespace

Bytes gather_staging(std::size_t ranks) { return staging_alignment * ranks; }

Bytes reduce_staging(const Plan& plan) {
  Bytes most;
  for (const Bucket& bucket : reduction_buckets(plan)) {
    if (plan.options.collective_staging == CollectiveStaging::parts) {
      most = std::max(most, std::min(parts_of(plan, bucket), staging_most));
      continue;
    }
    for (const std::size_t unit : bucket.units) most = std::max(most, part_of(plan, unit));
  }
  return std::max(most, gather_staging(plan.options.ranks));
}

}  // namespace tessera::plan
