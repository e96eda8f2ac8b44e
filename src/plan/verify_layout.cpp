// Compares every range with what UnitLayout says, without the helpers that the compiler used.
#include "plan/verify_layout.hpp"

#include <fmt/format.h>

#include "tessera/plan/memory.hpp"

namespace tessera::plan {

namespace {

void check_arena(const Plan& plan, const Report& report) {
  std::vector<const Buffer*> sorted;
  for (const Buffer& buffer : plan.buffers) sorted.push_back(&buffer);
  std::sort(sorted.begin(), sorted.end(), [](const Buffer* a, const Buffer* b) {
    return std::pair(a->offset, a->size) < std::pair(b->offset, b->size);
  });
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i]->offset.count() % buffer_alignment.count() != 0) {
      report(ViolationKind::layout, {}, {i, 0}, fmt::format("buffer {} is not aligned in the arena", sorted[i]->name));
    }
    if (i == 0 || sorted[i - 1]->offset + sorted[i - 1]->size <= sorted[i]->offset) continue;
    report(ViolationKind::layout, {}, {i, 1},
           fmt::format("buffers {} and {} overlap in the arena", sorted[i - 1]->name, sorted[i]->name));
  }
}

// Bytes per element of one of a unit's buffers; 0 when it is none of them.
Bytes element_size(const Plan& plan, std::size_t unit, std::size_t buffer) {
  const UnitBuffers& buffers = plan.unit_buffers[unit];
  if (buffer == buffers.master || buffer == buffers.gradient || buffer == buffers.accumulation) return Bytes(4);
  if (std::find(buffers.states.begin(), buffers.states.end(), buffer) != buffers.states.end()) return Bytes(4);
  if (buffer == buffers.parameters) return size_of(plan.options.precision.parameter);
  if (buffer == buffers.gradient_slot) return size_of(plan.options.precision.gradient);
  return Bytes(0);
}

enum class Share { whole, mine };

// What each kind of operation names of its unit, by access.
Share share_of(const Plan& plan, OperationKind kind, std::size_t access) {
  const Share updated = plan.updates_whole() ? Share::whole : Share::mine;
  switch (kind) {
    case OperationKind::initialize: return access == 0 ? Share::mine : updated;
    case OperationKind::cast:
    case OperationKind::optimize: return updated;
    case OperationKind::all_gather:
    case OperationKind::all_gather_sum: return access == 0 ? Share::mine : Share::whole;
    case OperationKind::reduce_scatter: return access == 0 ? Share::whole : Share::mine;
    case OperationKind::sum_of_squares: return Share::mine;
    default: return Share::whole;
  }
}

bool is_layouts(const Plan& plan, const Access& access, Share share) {
  const UnitLayout& layout = plan.layouts[access.tenant];
  const Bytes element = element_size(plan, access.tenant, access.range.buffer);
  const Range& range = access.range;
  if (element == Bytes(0) || range.offset != Bytes(0)) return false;
  if (share == Share::whole) return range.rank_stride == Bytes(0) && range.size == element * layout.padded_elements();
  const Bytes shard = element * layout.shard_elements();
  const bool alone = range.rank_stride == Bytes(0) && plan.buffers[range.buffer].size == shard;
  return range.size == shard && (alone || range.rank_stride == shard);
}

// Of the scalars: all, or the loss scale alone. Of the norms, a row of units per rank: all, my row, or my cell of the
// operation's unit.
bool is_plans(const Plan& plan, const Operation& operation, const Range& range) {
  const Bytes row = norm_size * plan.units.size();
  if (range.buffer == plan.scalars) {
    return range == Range{plan.scalars, Bytes(0), Bytes(0), scalars_size} ||
           range == Range{plan.scalars, loss_scale_offset, Bytes(0), Bytes(4)};
  }
  if (range.buffer != plan.norms) return false;
  if (operation.unit != no_unit) return range == Range{plan.norms, norm_size * operation.unit, row, norm_size};
  return range == Range{plan.norms, Bytes(0), Bytes(0), row * plan.options.ranks} ||
         range == Range{plan.norms, Bytes(0), row, row};
}

bool inside_buffer(const Plan& plan, const Range& range) {
  return interval(range, plan.options.ranks - 1).end <= plan.buffers[range.buffer].size.count();
}

// Gathers are in place.
bool is_in_place(const Operation& operation) {
  if (operation.kind != OperationKind::all_gather && operation.kind != OperationKind::all_gather_sum) return true;
  return operation.accesses[0].range.buffer == operation.accesses[1].range.buffer;
}

}  // namespace

void verify_layout(const Plan& plan, const Report& report) {
  check_arena(plan, report);
  for (std::size_t segment = 0; segment < plan.segments.size(); ++segment) {
    const auto& operations = plan.segments[segment].operations;
    for (std::size_t index = 0; index < operations.size(); ++index) {
      const EventPoint here{segment, index};
      for (std::size_t a = 0; a < operations[index].accesses.size(); ++a) {
        const Access& access = operations[index].accesses[a];
        const bool is_right = access.tenant == no_unit
                                  ? is_plans(plan, operations[index], access.range)
                                  : is_layouts(plan, access, share_of(plan, operations[index].kind, a));
        if (is_right && inside_buffer(plan, access.range)) continue;
        report(ViolationKind::layout, here, {segment, a},
               fmt::format("{}: its range of {} is not the layout's", describe(plan, here),
                           plan.buffers[access.range.buffer].name));
      }
      if (is_in_place(operations[index])) continue;
      report(ViolationKind::layout, here, here, fmt::format("{}: not in place", describe(plan, here)));
    }
  }
}

}  // namespace tessera::plan
