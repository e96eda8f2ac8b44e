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

bool is_layouts(const Plan& plan, const Access& access) {
  const UnitLayout& layout = plan.layouts[access.tenant];
  const Bytes element = element_size(plan, access.tenant, access.range.buffer);
  if (element == Bytes(0)) return false;
  const Bytes shard = element * layout.shard_elements();
  const Range& range = access.range;
  if (range.offset != Bytes(0)) return false;
  const bool whole = range.rank_stride == Bytes(0) && range.size == element * layout.padded_elements();
  const bool place_in_whole = range.rank_stride == shard && range.size == shard;
  const bool shard_alone =
      range.rank_stride == Bytes(0) && range.size == shard && plan.buffers[range.buffer].size == shard;
  return whole || place_in_whole || shard_alone;
}

bool inside_buffer(const Plan& plan, const Range& range) {
  return interval(range, plan.options.ranks - 1).end <= plan.buffers[range.buffer].size.count();
}

// A collective over a unit reads or writes everybody's part: whole on one side, this rank's shard on the other.
bool is_collectives(const Plan& plan, const Operation& operation) {
  if (!is_collective(operation.kind) || operation.kind == OperationKind::gather_norms) return true;
  const bool reduces = operation.kind == OperationKind::reduce_scatter;
  const Access& whole = operation.accesses[reduces ? 0 : 1];
  const Access& mine = operation.accesses[reduces ? 1 : 0];
  const UnitLayout& layout = plan.layouts[operation.unit];
  const Bytes whole_element = element_size(plan, operation.unit, whole.range.buffer);
  const Bytes my_element = element_size(plan, operation.unit, mine.range.buffer);
  return whole.range.size == whole_element * layout.padded_elements() &&
         mine.range.size == my_element * layout.shard_elements() && (reduces || whole.range.buffer == mine.range.buffer);
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
        const bool fits = inside_buffer(plan, access.range) &&
                          (access.tenant == no_unit ? access.range.size > Bytes(0) : is_layouts(plan, access));
        if (fits) continue;
        report(ViolationKind::layout, here, {segment, a},
               fmt::format("{}: its range of {} is not the layout's", describe(plan, here),
                           plan.buffers[access.range.buffer].name));
      }
      if (is_collectives(plan, operations[index])) continue;
      report(ViolationKind::layout, here, here,
             fmt::format("{}: a collective joins the whole of a unit with this rank's shard", describe(plan, here)));
    }
  }
}

}  // namespace tessera::plan
