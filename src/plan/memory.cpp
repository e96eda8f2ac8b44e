// Adds up bytes: of a whole plan, of what checkpoints use, and of what its reductions bring to a rank.
#include "tessera/plan/memory.hpp"

#include <algorithm>
#include <vector>

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

// A sum along one axis of what is already summed along those before it: first in the wire's type, then of fp32 sums.
struct SumAlong {
  Bytes part;  // that one rank contributes to another's sum
  std::size_t ranks;
};
std::vector<SumAlong> sums_of(const Plan& plan, std::size_t unit) {
  std::vector<SumAlong> result;
  AxisSet done;
  const auto add = [&](AxisSet axis) {
    const DType type = result.empty() ? wire_type(plan, unit) : DType::fp32;
    done = done | axis;
    const Bytes part = bytes_of(type, plan.layouts[unit].elements(done, Part::trained));
    result.push_back({round_up(part, staging_alignment), plan.mesh.size(axis)});
  };
  for (const AxisSet axis : plan.summed(unit)) add(axis);
  plan.mesh.inwards_out([&](Axis axis) {
    if (plan.diverging().contains(axis)) add(axis);
  });
  return result;
}

// The largest of a bucket's reductions. Outer steps go unit by unit.
Bytes parts_of(const Plan& plan, const Bucket& bucket) {
  std::vector<Bytes> reductions;
  Bytes outer;
  for (const std::size_t unit : bucket.units) {
    const std::vector<SumAlong> sums = sums_of(plan, unit);
    reductions.resize(plan.summed(unit).size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const Bytes parts = sums[i].part * sums[i].ranks;
      if (i < reductions.size()) reductions[i] += parts;
      if (i >= reductions.size()) outer = std::max(outer, parts);
    }
  }
  for (const Bytes bytes : reductions) outer = std::max(outer, bytes);
  return outer;
}

Bytes staging_of(const Plan& plan, const Bucket& bucket) {
  if (plan.options.collective_staging == CollectiveStaging::parts) {
    return std::min(parts_of(plan, bucket), staging_most);
  }
  Bytes most;
  for (const std::size_t unit : bucket.units) {
    for (const SumAlong& sum : sums_of(plan, unit)) most = std::max(most, sum.part);
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
    MemorySpace space = MemorySpace::device;
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.category != category.category) continue;
      end = std::max(end, buffer.offset + buffer.size);
      space = buffer.space;
      if (!is_slot(buffer)) persistent += buffer.size;
    }
    category.size = round_up(end - category.offset, region_alignment);
    report.peak += category.size;
    if (space == MemorySpace::host) report.host += category.size;
    if (space == MemorySpace::disk) report.disk += category.size;
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
  Bytes masters, states;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const UnitLayout& layout = plan.layouts[unit];
    const std::size_t trained = layout.elements(plan.own(unit), Part::trained);
    const Content& master = plan.unit_buffers[unit][Role::master];
    masters += master.size(trained + layout.elements(plan.own(unit), Part::frozen));
    elements += layout.buffer_elements();
    if (!plan.trains(unit)) continue;
    for (const Content& state : plan.unit_buffers[unit].states) {
      states += state.size(state.begin > 0 ? plan.packed_elements(unit, state) : trained);
    }
    if (plan.diverges()) elements += 2 * layout.shard_elements(Part::trained);  // anchor and outer momentum
  }
  return size_of(DType::fp32) * elements + masters + states;
}

// ---- collectives ----

Bytes gather_staging(std::size_t ranks) { return staging_alignment * ranks; }

Bytes reduce_staging(const Plan& plan) {
  Bytes most;
  for (std::size_t program = 0; program < plan.programs.size(); ++program) {
    for (const Bucket& bucket : reduction_buckets(plan, program)) most = std::max(most, staging_of(plan, bucket));
  }
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    if (!plan.units[unit].is_of_two_roles() || !plan.trains(unit)) continue;
    const Bytes shard = bytes_of(DType::fp32, plan.layouts[unit].elements(plan.own(unit), Part::trained));
    most = std::max(most, std::min(2 * round_up(shard, staging_alignment), staging_most));
  }
  return std::max(most, gather_staging(std::max(plan.options.ranks, plan.roles())));
}

Bytes tied_staging(std::span<const RankRole> roles) {
  const auto of = [](const Plan& plan) {
    return plan.reduce_staging == no_buffer ? Bytes(0) : plan.buffers[plan.reduce_staging].size;
  };
  return std::min(of(roles.front().plan), of(roles.back().plan));
}

Bytes window_staging(const Plan& plan) {
  Bytes most;
  for (const UnitSpec& unit : plan.units) {
    for (const CollectiveSpec& each : unit.collectives) {
      if (!sums(each.kind)) continue;
      const Bytes part = round_up(my_collected(plan, each).size, staging_alignment);
      most = std::max(most, std::min(part * plan.mesh.size(plan.group_of(each)), staging_most));
    }
  }
  const std::size_t parties = plan.options.role ? 2 : 1;  // of a message
  return std::max(most, gather_staging(std::max(plan.options.ranks, parties)));
}

}  // namespace tessera::plan
