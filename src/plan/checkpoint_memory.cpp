// Sizes of the regions that checkpoints use.
#include "tessera/plan/checkpoint_memory.hpp"

#include <algorithm>

#include "tessera/base/dtype.hpp"

namespace tessera::plan {

CheckpointStaging checkpoint_staging(std::size_t ranks) {
  constexpr Bytes page{4096};
  CheckpointStaging staging{.block = checkpoint_block, .part = Bytes(0), .ranks = ranks};
  if (ranks > 1) staging.part = std::max(page, round_up(Bytes(checkpoint_block.count() / ranks), page));
  return staging;
}

Bytes checkpoint_copy(const Plan& plan) {
  std::size_t elements = 0;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const UnitLayout& layout = plan.layouts[unit];
    elements += layout.shard_elements() + layout.buffer_elements();
    if (plan.trains(unit)) elements += plan.optimizer_states.size() * layout.shard_elements(Part::trained);
  }
  return size_of(DType::fp32) * elements;
}

}  // namespace tessera::plan
