// Adds up bytes: of a whole plan, of what checkpoints use, and of what its reductions bring to a rank.
#include "tessera/plan/memory.hpp"

#include <algorithm>

#include "plan/buckets.hpp"
#include "plan/collective_memory.hpp"
#include "plan/ranges.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/plan/checkpoint_memory.hpp"

namespace tessera::plan {

namespace {

bool is_slot(const Buffer& buffer) {
  return buffer.category == Category::parameter_slots || buffer.category == Category::gradient_slots ||
         buffer.category == Category::staging;
}

// The most that slots hold at once, in the order of launch: from the first write of a tenant to its release.
Bytes live_in_slots(const Plan& plan) {
  std::vector<Bytes> held(plan.buffers.size());
  Bytes now;
  Bytes most;
  for (const Segment& segment : plan.segments) {
    for (const Operation& operation : segment.operations) {
      for (const Access& access : operation.accesses) {
        const std::size_t buffer = access.range.buffer;
        if (!is_slot(plan.buffers[buffer])) continue;
        // A slot is taken for the whole unit, also while only this rank's share stands in it.
        const Bytes after =
            access.mode == AccessMode::discard ? Bytes(0) : std::max(held[buffer], Bytes(hull(plan, access.range).end));
        now = now - held[buffer] + after;
        held[buffer] = after;
        most = std::max(most, now);
      }
    }
  }
  return most;
}

// What one rank contributes to another's sum: inside a replica in the wire's type, across replicas of fp32 sums.
Bytes part_in_replica(const Plan& plan, std::size_t unit) {
  const Bytes part = size_of(wire_type(plan, unit)) * plan.layouts[unit].elements(Extent::group, Part::trained);
  return round_up(part, staging_alignment);
}
Bytes part_across_replicas(const Plan& plan, std::size_t unit) {
  if (plan.replicas_of(unit) == 1) return Bytes(0);
  return round_up(size_of(DType::fp32) * plan.layouts[unit].shard_elements(Part::trained), staging_alignment);
}

Bytes parts_of(const Plan& plan, const Bucket& bucket) {
  Bytes in_replica;
  Bytes across;
  for (const std::size_t unit : bucket.units) {
    in_replica += part_in_replica(plan, unit) * plan.ranks_of_replica();
    const Bytes part = part_across_replicas(plan, unit) * plan.options.replicas;
    across = plan.replicas_diverge() ? std::max(across, part) : across + part;  // outer steps go unit by unit
  }
  return std::max(in_replica, across);
}

Bytes staging_of(const Plan& plan, const Bucket& bucket) {
  if (plan.options.collective_staging == CollectiveStaging::parts) {
    return std::min(parts_of(plan, bucket), staging_most);
  }
  Bytes most;
  for (const std::size_t unit : bucket.units) {
    most = std::max({most, part_in_replica(plan, unit), part_across_replicas(plan, unit)});
  }
  return most;
}

}  // namespace

MemoryReport memory(const Plan& plan) {
  MemoryReport report{};
  Bytes persistent;
  for (std::size_t index = 0; index < category_count; ++index) {
    CategoryBytes& category = report.categories[index];
    category.category = static_cast<Category>(index);
    category.offset = report.peak;  // regions follow each other, whatever stands before a region's first buffer
    Bytes end = category.offset;
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.category != category.category) continue;
      end = std::max(end, buffer.offset + buffer.size);
      if (!is_slot(buffer)) persistent += buffer.size;
    }
    category.size = round_up(end - category.offset, region_alignment);
    report.peak += category.size;
    if (category.category == Category::checkpoints) report.host += category.size;
  }
  report.live = persistent + live_in_slots(plan);
  return report;
}

// ---- checkpoints ----

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
    const std::size_t trained = layout.elements(plan.own(unit), Part::trained);
    elements += trained + layout.elements(plan.own(unit), Part::frozen) + layout.buffer_elements();
    if (!plan.trains(unit)) continue;
    elements += plan.unit_buffers[unit].states.size() * trained;
    if (plan.replicas_diverge()) elements += 2 * layout.shard_elements(Part::trained);  // anchor and outer momentum
  }
  return size_of(DType::fp32) * elements;
}

// ---- collectives ----

Bytes gather_staging(std::size_t ranks) { return staging_alignment * ranks; }

Bytes reduce_staging(const Plan& plan) {
  Bytes most;
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    for (const Bucket& bucket : reduction_buckets(plan, program)) most = std::max(most, staging_of(plan, bucket));
  }
  return std::max(most, gather_staging(plan.options.ranks));
}

}  // namespace tessera::plan
