// Ranges of bytes: those that operations name (the whole of a unit in a buffer, or this rank's shard of it), and
// whether two can share a byte on one rank.
#pragma once

#include "tessera/plan/memory.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// ---- overlap ----
// Exact for the first and the last rank, which represent all: what ranges of one buffer name is linear in the rank's
// coordinates.

struct Interval {
  std::uint64_t begin;
  std::uint64_t end;
};

inline Bytes begin_of(const Range& range, const Coordinates& place) {
  Bytes begin = range.offset;
  for (std::size_t axis = 0; axis < axis_count; ++axis) begin += range.strides[axis] * place[axis];
  return begin;
}

inline Interval interval(const Range& range, const Coordinates& place) {
  const Bytes begin = begin_of(range, place);
  return {begin.count(), (begin + range.size).count()};
}

inline bool is_same_everywhere(const Range& range) { return range.strides == decltype(range.strides){}; }

// From the first rank's begin to the last rank's end.
inline Interval hull(const Plan& plan, const Range& range) {
  return {range.offset.count(), interval(range, plan.mesh.last()).end};
}

inline bool overlap(Interval a, Interval b) { return a.begin < b.end && b.begin < a.end; }
inline bool contains(Interval outer, Interval inner) {
  return inner.begin >= inner.end || (outer.begin <= inner.begin && inner.end <= outer.end);
}

inline bool writes(AccessMode mode) { return mode != AccessMode::read; }
inline bool reads(AccessMode mode) { return mode == AccessMode::read || mode == AccessMode::update; }

// ---- what operations name ----

inline Range fixed_range(std::size_t buffer, Bytes offset, Bytes size) { return {buffer, offset, size}; }

// One of the places into which a range is divided along some axes, in the order of MeshShape::index_of: this rank's.
inline Range divided(const Plan& plan, const Range& whole, AxisSet axes) {
  Range range = whole;
  range.size = Bytes(whole.size.count() / plan.mesh.size(axes));
  Bytes stride = range.size;
  plan.mesh.outwards_in([&](Axis axis) {
    if (!axes.contains(axis) || plan.mesh.size(axis) == 1) return;
    range.strides[static_cast<std::size_t>(axis)] = stride;
    stride = stride * plan.mesh.size(axis);
  });
  return range;
}

// Returns what this rank holds of a part of some content that is sharded so: all of it where it is, else its place
// there.
inline Range share_range(const Plan& plan, std::size_t unit, const Content& content, Part part, AxisSet over) {
  const UnitLayout& layout = plan.layouts[unit];
  if (content.begin > 0)
    return fixed_range(content.buffer, Bytes(0), content.size(plan.packed_elements(unit, content)));
  const Range all = fixed_range(content.buffer, content.size(layout.begin_in(content.over, part)),
                                content.size(layout.elements(content.over, part)));
  return divided(plan, all, (over & layout.common()) - content.over);
}

// Both parts, all that stands there.
inline Range whole_range(const Plan& plan, std::size_t unit, const Content& content) {
  const UnitLayout& layout = plan.layouts[unit];
  const std::size_t trained = layout.elements(content.over, Part::trained);
  return fixed_range(content.buffer, Bytes(0), content.size(trained + layout.elements(content.over, Part::frozen)));
}

// Returns what this rank owns of a part of some persistent content.
inline Range my_shard(const Plan& plan, std::size_t unit, const Content& content, Part part = Part::trained) {
  return share_range(plan, unit, content, part, plan.own(unit, content));
}

inline Range untrained_range(const Plan& plan, std::size_t unit) {
  const std::size_t buffer = plan.unit_buffers[unit][Role::untrained].buffer;
  return fixed_range(buffer, Bytes(0), plan.buffers[buffer].size);
}

// A collective in a window works on a place for every rank that takes part, in the order of MeshShape::index_of; where
// a sum is for all, each rank forms that of its place, and all places are then gathered. What each rank has for each
// comes behind what it brings for each.
inline std::size_t buffer_of(const Plan& plan, const CollectiveSpec& collective) {
  return collective.overlaps && sums(collective.kind) ? plan.collected_sums : plan.collected;
}
inline Range collected(const Plan& plan, const CollectiveSpec& collective) {
  const std::size_t ranks = plan.mesh.size(plan.group_of(collective));
  Bytes place = collective.bytes();
  if (collective.kind == CollectiveKind::all_reduce && ranks > 1)
    place = round_up(Bytes((place.count() + ranks - 1) / ranks), buffer_alignment);
  return fixed_range(buffer_of(plan, collective), Bytes(0), place * ranks);
}
inline Range my_collected(const Plan& plan, const CollectiveSpec& collective) {
  return divided(plan, collected(plan, collective), plan.group_of(collective));
}

// Sums of 16-bit elements are formed in fp32 behind the result, which is rounded from there.
inline bool rounds_sums(const Plan& plan, const CollectiveSpec& collective) {
  return sums(collective.kind) && collective.type != DType::fp32 && !plan.group_of(collective).empty();
}

// A rank has written the first range before the collective, and reads the second after it.
inline Range brought(const Plan& plan, const CollectiveSpec& collective) {
  const bool of_one = collective.kind == CollectiveKind::all_gather;
  return of_one ? my_collected(plan, collective) : collected(plan, collective);
}
inline Range received(const Plan& plan, const CollectiveSpec& collective) {
  const Range all = collected(plan, collective), mine = my_collected(plan, collective);
  if (collective.kind == CollectiveKind::all_to_all && !plan.group_of(collective).empty())
    return fixed_range(all.buffer, round_up(all.size, buffer_alignment), all.size);
  const bool scatters = collective.kind == CollectiveKind::reduce_scatter;
  if (!rounds_sums(plan, collective)) return scatters ? mine : all;
  const Bytes begin = scatters ? round_up(all.size, buffer_alignment) : Bytes(0);
  return fixed_range(buffer_of(plan, collective), begin,
                     round_up(scatters ? mine.size : all.size, buffer_alignment) + mine.size * 2);
}

// The buffer of a message that the n-th of its windows in a segment uses.
inline Range message_buffer(const Plan& plan, std::size_t unit, std::size_t collective, std::size_t use) {
  const CollectiveSpec& message = plan.units[unit].collectives[collective];
  const Bytes each = round_up(message.bytes(), buffer_alignment);
  return fixed_range(plan.messages[unit][collective], each * (use % message.buffers), message.bytes());
}

// Tensors that a rank owns of a group, which every rank has room for; and the room beside them.
inline Access whole_access(const Plan& plan, const WholeGroup& group, AccessMode mode) {
  const std::size_t first = group.units.front();
  return {fixed_range(plan.unit_buffers[first][Role::whole].buffer, Bytes(0), group.size), mode, first, Role::whole};
}
inline Access workspace_access(const Plan& plan, const WholeGroup& group) {
  const std::size_t first = group.units.front();
  const std::size_t buffer = plan.unit_buffers[first][Role::workspace].buffer;
  return {fixed_range(buffer, Bytes(0), plan.buffers[buffer].size), AccessMode::write, first, Role::workspace};
}

inline Range scalars_range(const Plan& plan, std::size_t program) {
  return fixed_range(plan.program_buffers[program].scalars, Bytes(0), scalars_size);
}
inline Range loss_scale_range(const Plan& plan, std::size_t program) {
  return fixed_range(plan.program_buffers[program].scalars, loss_scale_offset, Bytes(4));
}

// Partial norms: one row of the units that a program trains per rank that trains with this one, in the order of the
// shards that they own; at its end what the rank brings to the mean.
inline Bytes norm_cell(const Plan& plan) { return plan.has_granules() ? exact_norm_size : norm_size; }
inline Bytes brought_size(const Plan& plan, std::size_t program) {
  return step_part_size + granule_weight_size * plan.granules(program).rounds();
}
inline Bytes norm_row(const Plan& plan, std::size_t program) {
  return norm_cell(plan) * plan.norm_cells(program) + brought_size(plan, program);
}
inline Range all_norms(const Plan& plan, std::size_t program) {
  return fixed_range(plan.program_buffers[program].norms, Bytes(0), norm_row(plan, program) * plan.training_ranks());
}
inline Range my_norms(const Plan& plan, std::size_t program) {
  return divided(plan, all_norms(plan, program), plan.training());
}
// So many cells of my row, from this one on.
inline Range my_cells(const Plan& plan, std::size_t program, std::size_t first, std::size_t count) {
  Range cells = my_norms(plan, program);
  cells.offset = norm_cell(plan) * first;
  cells.size = norm_cell(plan) * count;
  return cells;
}
inline Range my_norm(const Plan& plan, std::size_t unit) {
  return my_cells(plan, plan.trainers[unit], plan.first_norm() + plan.norm_columns[unit], 1);
}

inline Range my_part(const Plan& plan, std::size_t program) {
  Range part = my_norms(plan, program);
  part.offset = norm_cell(plan) * plan.norm_cells(program);
  part.size = brought_size(plan, program);
  return part;
}

}  // namespace tessera::plan
