// Slots freed early or given to two units, and buffers put upon each other.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "mutants.hpp"
#include "plan/passes.hpp"
#include "plan/ranges.hpp"
#include "plan_edits.hpp"
#include "tessera/plan/memory.hpp"

namespace tessera::plan {

namespace {

bool reads_buffer(const Operation& operation, std::size_t buffer) {
  return std::any_of(operation.accesses.begin(), operation.accesses.end(), [&](const Access& access) {
    return access.range.buffer == buffer && (access.mode == AccessMode::read || access.mode == AccessMode::update);
  });
}

// The last operation before `release` on its stream that reads the slot.
std::size_t last_reader(const Plan& plan, std::size_t segment, std::size_t release) {
  const auto& operations = plan.segments[segment].operations;
  const std::size_t slot = operations[release].accesses.front().range.buffer;
  std::size_t operation = previous_on_stream(plan, segment, release);
  while (operation != no_operation && !reads_buffer(operations[operation], slot)) {
    operation = previous_on_stream(plan, segment, operation);
  }
  return operation;
}

// A slot is given back before the operation that before(plan, segment, release) names.
template <typename Before>
MakeMutants freed_early(Before before) {
  return [=](const Plan& plan, const MutantSink& sink) {
    at_each(plan, sink, is_of(OperationKind::release), [&](Plan& mutant, EventPoint point) {
      // The slot of an empty unit holds nothing.
      const bool empty = mutant.at(point).accesses.front().range.size == Bytes(0);
      if (empty) {
        sink.exclude();
      } else {
        move_up(mutant, point.segment, point.operation, before(plan, point.segment, point.operation));
      }
      return !empty;
    });
  };
}

// Slots of one bucket are given back one after the other, in any order: the operation before is the one before all.
std::size_t operation_before(const Plan& plan, std::size_t segment, std::size_t release) {
  std::size_t operation = previous_on_stream(plan, segment, release);
  while (plan.segments[segment].operations[operation].kind == OperationKind::release) {
    operation = previous_on_stream(plan, segment, operation);
  }
  return operation;
}

void rename_buffer(Plan& plan, std::size_t unit, std::size_t from, std::size_t to) {
  for (Segment& segment : plan.segments) {
    for (Operation& operation : segment.operations) {
      for (Access& access : operation.accesses) {
        if (access.tenant == unit && access.range.buffer == from) access.range.buffer = to;
      }
    }
  }
}

// A place behind all others, so that a slot may grow there.
void make_room(Plan& plan, std::size_t buffer, Bytes size) {
  Bytes end;
  for (const Buffer& other : plan.buffers) end = std::max(end, other.offset + other.size);
  plan.buffers[buffer].size = std::max(plan.buffers[buffer].size, size);
  plan.buffers[buffer].offset = round_up(end, buffer_alignment);
}

// When a unit holds a slot, in operations of the micro-batch `segment`. A slot that another stream gives back than took
// it may be in use until the next backward window ends.
std::vector<Interval> tenancies(const Plan& plan, std::size_t segment, std::size_t unit, std::size_t slot) {
  const auto& operations = plan.segments[segment].operations;
  std::vector<Interval> result;
  std::optional<std::size_t> taken;
  for (std::size_t o = 0; o < operations.size(); ++o) {
    for (const Access& access : operations[o].accesses) {
      if (access.tenant != unit || access.range.buffer != slot) continue;
      if (!taken) taken = o;
      if (access.mode != AccessMode::discard) continue;
      std::size_t end = o + 1;
      const bool runs_on = operations[*taken].stream != operations[o].stream;
      while (runs_on && end < operations.size() && operations[end - 1].kind != OperationKind::window) ++end;
      result.push_back({*taken, end});
      taken.reset();
    }
  }
  return result;
}

bool meets_a_tenant(const Plan& plan, std::size_t unit, std::size_t to, Role slot) {
  const std::size_t segment = *plan.find(plan.micro_batches(0) == 1 ? SegmentKind::only : SegmentKind::last);
  for (std::size_t other = 0; other < plan.units.size(); ++other) {
    if (other == unit || plan.unit_buffers[other][slot].buffer != to) continue;
    for (const Interval& mine : tenancies(plan, segment, unit, plan.unit_buffers[unit][slot].buffer)) {
      for (const Interval& theirs : tenancies(plan, segment, other, to)) {
        if (overlap(mine, theirs)) return true;
      }
    }
  }
  return false;
}

// Whether an operation at `at` that waits for `has` need not wait for `need`, of the same stream: that is the same one
// or stands before it. What was launched in this segment stands behind all that earlier ones launched there.
bool covers(EventPoint at, EventPoint has, EventPoint need) {
  const bool of_this_segment = has.segment == at.segment && has.operation < at.operation;
  if (of_this_segment && (need.segment != at.segment || need.operation >= at.operation)) return true;
  return has.segment == need.segment && has.operation >= need.operation;
}

// Whether each operation waits for all that the compiler would let it wait for, by itself or by what stands before it
// on its stream.
bool waits_are_enough(const Plan& plan) {
  Plan derived = plan;
  for (Segment& segment : derived.segments) {
    for (Operation& operation : segment.operations) operation.waits.clear();
  }
  derived.events.clear();
  derive_waits(derived);
  const auto is_covered = [&](EventPoint at, EventPoint need) {
    for (EventPoint before = at; before.operation != no_operation;
         before.operation = previous_on_stream(plan, at.segment, before.operation)) {
      for (const Wait& wait : plan.at(before).waits) {
        const EventPoint has = plan.events[wait.event];
        if (plan.at(has).stream == plan.at(need).stream && covers(before, has, need)) return true;
      }
    }
    return false;
  };
  for (std::size_t s = 0; s < derived.segments.size(); ++s) {
    for (std::size_t o = 0; o < derived.segments[s].operations.size(); ++o) {
      for (const Wait& wait : derived.segments[s].operations[o].waits) {
        if (!is_covered({s, o}, derived.events[wait.event])) return false;
      }
    }
  }
  return true;
}

// One unit moves into the slot of another that holds it at the same time: slots are coloured greedily, so of the units
// of a lower slot at least one overlaps. Of parameters, two units that never overlap are given one slot by the
// compiler; such a pair in different slots may share, given the waits, and its mutant lacks them, unless what orders
// their neighbours happens to be enough. Gradients of one bucket spread over slots that an earlier unit could as well
// have had: no hazard.
void slot_merged(const Plan& plan, const MutantSink& sink, Role slot) {
  if (slot == Role::parameters && plan.parameters_stay_whole()) return;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    for (std::size_t other = 0; other < plan.units.size(); ++other) {
      const std::size_t from = plan.unit_buffers[unit][slot].buffer;
      const std::size_t to = plan.unit_buffers[other][slot].buffer;
      if (from == to || from == no_buffer || to == no_buffer) continue;
      // An empty unit takes no place in any slot.
      if (plan.layouts[unit].padded_elements() == 0 || plan.layouts[other].padded_elements() == 0) {
        sink.exclude();
        continue;
      }
      if (slot != Role::parameters && !meets_a_tenant(plan, unit, to, slot)) {
        sink.exclude();
        continue;
      }
      Plan mutant = plan;
      mutant.unit_buffers[unit][slot].buffer = to;
      make_room(mutant, to, plan.buffers[from].size);
      rename_buffer(mutant, unit, from, to);
      if (slot == Role::parameters && !meets_a_tenant(plan, unit, to, slot) && waits_are_enough(mutant)) {
        sink.exclude();
        continue;
      }
      sink.take(std::move(mutant), fmt::format("{} to the slot of {}", plan.units[unit].name, plan.units[other].name));
    }
  }
}

// The next buffer in the arena that holds bytes.
std::optional<std::size_t> neighbour(const Plan& plan, std::size_t buffer) {
  std::optional<std::size_t> best;
  for (std::size_t other = 0; other < plan.buffers.size(); ++other) {
    if (plan.buffers[other].size == Bytes(0) || plan.buffers[other].offset <= plan.buffers[buffer].offset) continue;
    if (!best || plan.buffers[other].offset < plan.buffers[*best].offset) best = other;
  }
  return best;
}

void upon_its_neighbour(const Plan& plan, const MutantSink& sink) {
  for (std::size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
    const auto other = neighbour(plan, buffer);
    if (!other) continue;
    // A buffer without bytes lies upon nothing.
    if (plan.buffers[buffer].size == Bytes(0)) {
      sink.exclude();
      continue;
    }
    Plan mutant = plan;
    mutant.buffers[buffer].offset = plan.buffers[*other].offset;
    sink.take(std::move(mutant), plan.buffers[buffer].name);
  }
}

// Into the last aligned place at which it still meets the neighbour's first bytes.
void into_its_neighbour(const Plan& plan, const MutantSink& sink) {
  for (std::size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
    const auto other = neighbour(plan, buffer);
    if (!other || plan.buffers[buffer].size == Bytes(0)) continue;
    Plan mutant = plan;
    const Bytes reach = round_up(plan.buffers[buffer].size, buffer_alignment) - buffer_alignment;
    mutant.buffers[buffer].offset = plan.buffers[*other].offset - std::min(reach, plan.buffers[*other].offset);
    sink.take(std::move(mutant), plan.buffers[buffer].name);
  }
}

// The last operation before a fetch that gives one of its slots back; no_operation where the one before did.
std::size_t release_before(const Segment& segment, std::size_t fetch) {
  for (std::size_t o = fetch; o-- > 0;) {
    const Operation& operation = segment.operations[o];
    if (operation.kind != OperationKind::release || operation.accesses.front().range.size == Bytes(0)) continue;
    const Operation& brings = segment.operations[fetch];
    for (std::size_t move = 0; move < brings.moves(); ++move) {
      if (brings.target(move).range.buffer == operation.accesses.front().range.buffer) return o;
    }
  }
  return no_operation;
}

bool fetched_before_the_slot_is_free(Plan& mutant, EventPoint point) {
  if (mutant.at(point).stream != StreamId::fetch) return false;
  const std::size_t release = release_before(mutant.segments[point.segment], point.operation);
  if (release != no_operation) move_up(mutant, point.segment, point.operation, release);
  return release != no_operation;
}

void host_memory_in_place_of_the_slot(const Plan& plan, const MutantSink& sink) {
  each_operation(plan, [&](EventPoint point, const Operation& operation) {
    if (operation.kind == OperationKind::transfer || operation.kind == OperationKind::release) return;
    for (std::size_t a = 0; a < operation.accesses.size(); ++a) {
      const Role slot = operation.accesses[a].role;
      if (slot != Role::state_slot && slot != Role::master_slot) continue;
      Plan mutant = plan;
      Access& access = operation_at(mutant, point).accesses[a];
      access.role = slot == Role::state_slot ? Role::state : Role::master;
      access.range.buffer = plan.content(access).buffer;
      sink.take(std::move(mutant), describe(plan, point));
    }
  });
}

// The device's memory in place of what the host's processors have, and their stream in place of another.
void device_memory_in_place_of_the_hosts(const Plan& plan, const MutantSink& sink) {
  each_operation(plan, [&](EventPoint point, const Operation& operation) {
    if (operation.kind != OperationKind::optimize || operation.stream != StreamId::host) return;
    Plan mutant = plan;
    Access& gradient = operation_at(mutant, point).accesses.front();
    gradient.role = Role::gradient;
    gradient.range.buffer = plan.content(gradient).buffer;
    sink.take(std::move(mutant), describe(plan, point));
    mutant = plan;
    operation_at(mutant, point).stream = StreamId::compute;
    sink.take(std::move(mutant), describe(plan, point) + " on the device");
  });
}

}  // namespace

std::vector<MutantClass> slot_mutants() {
  const auto merged = [](Role slot) {
    return [slot](const Plan& plan, const MutantSink& sink) { slot_merged(plan, sink, slot); };
  };
  return {
      {"transfer missing", false, each(is_of(OperationKind::transfer), erase)},
      {"transfer on the other stream", false,
       each_changed(is_of(OperationKind::transfer),
                    [](Operation& transfer) {
                      transfer.stream = transfer.stream == StreamId::fetch ? StreamId::evict : StreamId::fetch;
                    })},
      {"fetched before the slot is free", false, each(is_of(OperationKind::transfer), fetched_before_the_slot_is_free)},
      {"an operation in the host's memory", false, host_memory_in_place_of_the_slot},
      {"an update on the host of what is elsewhere", false, device_memory_in_place_of_the_hosts},
      {"slot freed before its last reader", false, freed_early(last_reader)},
      {"slot freed one operation early", false, freed_early(operation_before)},
      {"parameter slot shared", false, merged(Role::parameters)},
      {"gradient slot shared", false, merged(Role::gradient_slot)},
      // Buckets travel one after the other on one stream: the only one of its bucket in a buffer may stand in any.
      {"staging shared", false, merged(Role::staging)},
      {"buffer upon its neighbour", false, upon_its_neighbour},
      {"buffer one step into its neighbour", false, into_its_neighbour}};
}

}  // namespace tessera::plan
