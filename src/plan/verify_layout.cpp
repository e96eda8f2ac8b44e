// Compares every range with what UnitLayout says, without the helpers that the compiler used.
#include "plan/verify_layout.hpp"

#include <fmt/format.h>

#include <set>

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

// What one of a unit's buffers holds: bytes per element (0 when it is none of them), and whether the frozen part too.
struct Holding {
  Bytes element{};
  bool frozen = false;
};

Holding holding(const Plan& plan, std::size_t unit, std::size_t buffer) {
  const UnitBuffers& buffers = plan.unit_buffers[unit];
  const Precision& precision = plan.units[unit].precision ? *plan.units[unit].precision : plan.options.precision;
  if (buffer == buffers.master) return {Bytes(4), true};
  if (buffer == buffers.parameters) return {size_of(precision.parameter), true};
  if (buffer == buffers.gradient || buffer == buffers.accumulation) return {Bytes(4), false};
  if (std::find(buffers.states.begin(), buffers.states.end(), buffer) != buffers.states.end()) return {Bytes(4), false};
  if (buffer == buffers.gradient_slot) return {size_of(precision.gradient), false};
  if (buffer == buffers.staging) return {size_of(precision.wire), false};
  return {};
}

enum class Share { everything, whole, mine };  // both parts; a part; my shard of a part

// What each kind of operation names of its unit, by access.
Share share_of(const Plan& plan, const Operation& operation, const Access& access) {
  const Share updated = plan.updates_whole() ? Share::whole : Share::mine;
  const bool is_source = (&access - operation.accesses.data()) % 2 == 0;
  const std::size_t buffer = access.range.buffer;
  const UnitBuffers& buffers = plan.unit_buffers[access.tenant];
  switch (operation.kind) {
    case OperationKind::initialize: return buffer == buffers.master ? Share::mine : updated;
    case OperationKind::cast:
    case OperationKind::optimize: return updated;
    case OperationKind::all_gather:
    case OperationKind::all_gather_sum: return is_source ? Share::mine : Share::whole;
    case OperationKind::reduce_scatter: return is_source ? Share::whole : Share::mine;
    case OperationKind::sum_of_squares:
    case OperationKind::hook: return Share::mine;
    case OperationKind::release:
    case OperationKind::window: return buffer == buffers.parameters ? Share::everything : Share::whole;
    default: return Share::whole;
  }
}

bool is_part(const Plan& plan, const Access& access, Share share, Part part) {
  const UnitLayout& layout = plan.layouts[access.tenant];
  const Bytes element = holding(plan, access.tenant, access.range.buffer).element;
  const Range& range = access.range;
  const Bytes begin = element * layout.begin(part);
  if (share == Share::whole) {
    return range.offset == begin && range.rank_stride == Bytes(0) &&
           range.size == element * layout.padded_elements(part);
  }
  const Bytes shard = element * layout.shard_elements(part);
  if (range.size != shard) return false;
  const bool shards_alone = range.rank_stride == Bytes(0) && range.offset == element * layout.begin_in_shard(part);
  const Bytes whole = element * layout.padded_elements();
  if (shards_alone && (plan.buffers[range.buffer].size != whole || plan.options.ranks == 1)) return true;
  return range.rank_stride == shard && range.offset == begin;
}

bool is_layouts(const Plan& plan, const Access& access, Share share) {
  const Range& range = access.range;
  const UnitLayout& layout = plan.layouts[access.tenant];
  if (range.buffer == plan.unit_buffers[access.tenant].untrained) {
    return range == Range{range.buffer, Bytes(0), Bytes(0), plan.buffers[range.buffer].size};
  }
  const Holding held = holding(plan, access.tenant, range.buffer);
  if (held.element == Bytes(0)) return false;
  if (share == Share::everything) {
    return range == Range{range.buffer, Bytes(0), Bytes(0), held.element * layout.padded_elements()};
  }
  return is_part(plan, access, share, Part::trained) || (held.frozen && is_part(plan, access, share, Part::frozen));
}

// Of the scalars: all, or the loss scale alone. Of the norms, a row of units per rank: all, my row, or my cell of the
// operation's unit.
bool is_plans(const Plan& plan, const Operation& operation, const Range& range) {
  const Bytes row = norm_size * plan.trained_units();
  if (range.buffer == plan.scalars) {
    return range == Range{plan.scalars, Bytes(0), Bytes(0), scalars_size} ||
           range == Range{plan.scalars, loss_scale_offset, Bytes(0), Bytes(4)};
  }
  if (range.buffer != plan.norms) return false;
  if (operation.unit != no_unit)
    return range == Range{plan.norms, norm_size * plan.norm_columns[operation.unit], row, norm_size};
  return range == Range{plan.norms, Bytes(0), Bytes(0), row * plan.options.ranks} ||
         range == Range{plan.norms, Bytes(0), row, row};
}

bool inside_buffer(const Plan& plan, const Range& range) {
  return interval(range, plan.options.ranks - 1).end <= plan.buffers[range.buffer].size.count();
}

bool moves_shards(const Operation& operation) {
  return operation.kind == OperationKind::all_gather || operation.kind == OperationKind::all_gather_sum ||
         operation.kind == OperationKind::reduce_scatter;
}

// A source and a target for each unit; no unit twice, the operation's own first.
bool is_paired(const Operation& operation) {
  if (!moves_shards(operation)) return true;
  const std::vector<Access>& accesses = operation.accesses;
  if (accesses.empty() || accesses.size() % 2 != 0 || accesses.front().tenant != operation.unit) return false;
  std::set<std::size_t> units;
  for (std::size_t a = 0; a < accesses.size(); a += 2) {
    const AccessMode expected = operation.add ? AccessMode::update : AccessMode::write;
    if (accesses[a].mode != AccessMode::read || accesses[a + 1].mode != expected) return false;
    if (accesses[a].tenant != accesses[a + 1].tenant || !units.insert(accesses[a].tenant).second) return false;
  }
  return true;
}

// What is reduced stands in the wire's type, and its sum in the unit's gradient.
bool is_sum(const Plan& plan, const Operation& operation) {
  if (operation.kind != OperationKind::reduce_scatter) return true;
  for (std::size_t a = 0; a < operation.accesses.size(); a += 2) {
    const std::size_t unit = operation.accesses[a].tenant;
    if (holding(plan, unit, operation.accesses[a].range.buffer).element != size_of(operation.wire)) return false;
    if (operation.accesses[a + 1].range.buffer != plan.unit_buffers[unit].gradient) return false;
  }
  return true;
}

// Gathers are in place: my shard and the whole are of one buffer and one part.
bool is_in_place(const Operation& operation) {
  if (!moves_shards(operation) || operation.kind == OperationKind::reduce_scatter) return true;
  for (std::size_t a = 0; a < operation.accesses.size(); a += 2) {
    const Range& mine = operation.accesses[a].range;
    const Range& whole = operation.accesses[a + 1].range;
    if (mine.buffer != whole.buffer || mine.offset != whole.offset) return false;
  }
  return true;
}

void check_shape(const Plan& plan, EventPoint here, const Report& report) {
  const Operation& operation = plan.at(here);
  const auto object = [&](const char* why) {
    report(ViolationKind::layout, here, here, fmt::format("{}: {}", describe(plan, here), why));
  };
  if (!is_paired(operation)) return object("not a source and a target for each of its units");
  if (!is_sum(plan, operation)) object("not a sum of gradients in the wire's type");
  if (!is_in_place(operation)) object("not in place");
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
                                  : is_layouts(plan, access, share_of(plan, operations[index], access));
        if (is_right && inside_buffer(plan, access.range)) continue;
        report(ViolationKind::layout, here, {segment, a},
               fmt::format("{}: its range of {} is not the layout's", describe(plan, here),
                           plan.buffers[access.range.buffer].name));
      }
      check_shape(plan, here, report);
    }
  }
}

}  // namespace tessera::plan
