// Every segment counts as often as a step runs it.
#include "traffic.hpp"

#include <algorithm>
#include <map>

namespace tools {

namespace plan = tessera::plan;
using tessera::Bytes;

namespace {

std::size_t runs_per_step(plan::SegmentKind kind, std::size_t micro_batches) {
  switch (kind) {
    case plan::SegmentKind::only:
    case plan::SegmentKind::first:
    case plan::SegmentKind::last:
    case plan::SegmentKind::update: return 1;
    case plan::SegmentKind::middle: return micro_batches - 2;
    default: return 0;
  }
}

// Accesses come in pairs, a shard and the whole, one pair for each unit.
Bytes whole_size(const plan::Operation& operation) {
  Bytes size;
  for (std::size_t pair = 0; pair + 1 < operation.accesses.size(); pair += 2) {
    size += std::max(operation.accesses[pair].range.size, operation.accesses[pair + 1].range.size);
  }
  return size;
}

using Sizes = std::map<Bytes, std::size_t>;  // how often each

CollectiveSizes summary(plan::OperationKind kind, const Sizes& sizes, std::size_t ranks) {
  CollectiveSizes result{.kind = kind};
  for (const auto& [size, times] : sizes) {
    result.count += times;
    result.moved += Bytes(size.count() / ranks * (ranks - 1)) * times;  // wholes are shards of equal size
  }
  result.smallest = sizes.begin()->first;
  result.largest = sizes.rbegin()->first;
  std::size_t before = 0;
  for (const auto& [size, times] : sizes) {
    if (before <= (result.count - 1) / 2) result.median = size;
    before += times;
  }
  return result;
}

}  // namespace

Traffic traffic(const plan::Plan& plan) {
  Traffic result;
  if (plan.options.ranks == 1) return result;
  std::map<plan::OperationKind, Sizes> kinds;
  for (const plan::Segment& segment : plan.segments) {
    const std::size_t times = runs_per_step(segment.kind, plan.options.micro_batches);
    for (const plan::Operation& operation : segment.operations) {
      if (times > 0 && is_collective(operation.kind)) kinds[operation.kind][whole_size(operation)] += times;
    }
  }
  for (const auto& [kind, sizes] : kinds) {
    result.kinds.push_back(summary(kind, sizes, plan.options.ranks));
    result.moved += result.kinds.back().moved;
  }
  return result;
}

}  // namespace tools
