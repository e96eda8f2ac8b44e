// Ranges of bytes: those that operations name (the whole of a unit in a buffer, or this rank's shard of it), and
// whether two can share a byte on one rank.
#pragma once

#include "tessera/plan/memory.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// ---- overlap ----
// Exact for the first and the last rank, which represent all: what ranges of one buffer name is all of it, a replica's
// share, or a rank's shard, each of them linear in the rank's place.

struct Interval {
  std::uint64_t begin;
  std::uint64_t end;
};

inline Interval interval(const Range& range, MeshPlace place) {
  const Bytes begin = range.offset + range.replica_stride * place.replica + range.shard_stride * place.shard;
  return {begin.count(), (begin + range.size).count()};
}

// From the first rank's begin to the last rank's end.
inline Interval hull(const Plan& plan, const Range& range) {
  return {range.offset.count(), interval(range, plan.last_place()).end};
}

inline bool overlap(Interval a, Interval b) { return a.begin < b.end && b.begin < a.end; }
inline bool contains(Interval outer, Interval inner) {
  return inner.begin >= inner.end || (outer.begin <= inner.begin && inner.end <= outer.end);
}

inline bool writes(AccessMode mode) { return mode != AccessMode::read; }
inline bool reads(AccessMode mode) { return mode == AccessMode::read || mode == AccessMode::update; }

// ---- what operations name ----

inline Range fixed_range(std::size_t buffer, Bytes offset, Bytes size) {
  return {buffer, offset, Bytes(0), Bytes(0), size};
}

inline Range whole_range(const Plan& plan, std::size_t unit, std::size_t buffer, DType type) {
  return fixed_range(buffer, Bytes(0), size_of(type) * plan.layouts[unit].padded_elements());
}

// `per_shard` bytes for each shard of a whole that so many replicas have in common, one after the other, of which
// `extent` is named.
struct Shards {
  Bytes per_shard;
  std::size_t replicas;
};
inline Range strided(const Plan& plan, const Range& whole, Extent extent, Shards shards) {
  Range range = whole;
  const Bytes share = shards.per_shard * shards.replicas;
  range.size = extent == Extent::group ? share : shards.per_shard;
  if (plan.ranks_of_replica() > 1) range.shard_stride = share;
  if (extent == Extent::mine && shards.replicas > 1) range.replica_stride = shards.per_shard;
  return range;
}

// What this rank holds of a part, as much as `extent` says: all of a buffer that has room for just that, else its place
// in one that has room for more.
inline Range share_range(const Plan& plan, std::size_t unit, std::size_t buffer, DType type, Part part, Extent extent) {
  const UnitLayout& layout = plan.layouts[unit];
  const Extent held = plan.extent(unit, buffer);
  const Range all =
      fixed_range(buffer, size_of(type) * layout.begin_in(held, part), size_of(type) * layout.elements(held, part));
  if (extent == held) return all;
  Range share = strided(plan, all, extent, {size_of(type) * layout.shard_elements(part), plan.replicas_of(unit)});
  if (held == Extent::group) share.shard_stride = Bytes(0);
  return share;
}

// A part of the whole unit.
inline Range part_range(const Plan& plan, std::size_t unit, std::size_t buffer, DType type, Part part) {
  return share_range(plan, unit, buffer, type, part, Extent::whole);
}

// The whole gradient: that of the trained part.
inline Range gradient_range(const Plan& plan, std::size_t unit, std::size_t buffer, DType type) {
  return part_range(plan, unit, buffer, type, Part::trained);
}

// What this rank owns of a part of a persistent fp32 buffer: its shard, but for replicas that differ.
inline Range my_shard(const Plan& plan, std::size_t unit, std::size_t buffer, Part part = Part::trained) {
  return share_range(plan, unit, buffer, DType::fp32, part, plan.own(unit, buffer));
}

// What this rank's update reads or writes of a persistent buffer.
inline Range updated(const Plan& plan, std::size_t unit, std::size_t buffer, DType type = DType::fp32) {
  return share_range(plan, unit, buffer, type, Part::trained, plan.sharding(unit).optimizer);
}

inline Range untrained_range(const Plan& plan, std::size_t unit) {
  const std::size_t buffer = plan.unit_buffers[unit].untrained;
  return fixed_range(buffer, Bytes(0), plan.buffers[buffer].size);
}

// A place for every rank that takes part in an exchange, in the order of the shards that they own.
inline Range all_exchanged(const Plan& plan, const ExchangeSpec& exchange) {
  const Bytes of_rank = exchange_value_size * exchange.values;
  return fixed_range(plan.exchanged, Bytes(0), of_rank * plan.ranks_in(plan.group_of(exchange)));
}
inline Range my_exchanged(const Plan& plan, const ExchangeSpec& exchange) {
  const Bytes of_rank = exchange_value_size * exchange.values;
  if (plan.group_of(exchange) == GroupKind::all) {
    return strided(plan, all_exchanged(plan, exchange), Extent::mine, {of_rank, plan.options.replicas});
  }
  return {plan.exchanged, Bytes(0), Bytes(0), plan.ranks_of_replica() > 1 ? of_rank : Bytes(0), of_rank};
}

inline Range scalars_range(const Plan& plan, std::size_t program) {
  return fixed_range(plan.program_buffers[program].scalars, Bytes(0), scalars_size);
}
inline Range loss_scale_range(const Plan& plan, std::size_t program) {
  return fixed_range(plan.program_buffers[program].scalars, loss_scale_offset, Bytes(4));
}

// Partial norms: one row of the units that a program trains per rank that trains with this one, in the order of the
// shards that they own; at its end what the rank brings to the mean.
inline Bytes norm_row(const Plan& plan, std::size_t program) {
  return norm_size * plan.trained_units(program) + step_part_size;
}
inline Range all_norms(const Plan& plan, std::size_t program) {
  return fixed_range(plan.program_buffers[program].norms, Bytes(0), norm_row(plan, program) * plan.training_ranks());
}
inline Range my_norms(const Plan& plan, std::size_t program) {
  const Bytes row = norm_row(plan, program);
  if (!plan.replicas_diverge()) {
    return strided(plan, all_norms(plan, program), Extent::mine, {row, plan.options.replicas});
  }
  return {plan.program_buffers[program].norms, Bytes(0), Bytes(0), plan.ranks_of_replica() > 1 ? row : Bytes(0), row};
}
inline Range my_norm(const Plan& plan, std::size_t unit) {
  Range norm = my_norms(plan, plan.trainers[unit]);
  norm.offset = norm_size * plan.norm_columns[unit];
  norm.size = norm_size;
  return norm;
}

inline Range my_part(const Plan& plan, std::size_t program) {
  Range part = my_norms(plan, program);
  part.offset = norm_size * plan.trained_units(program);
  part.size = step_part_size;
  return part;
}

}  // namespace tessera::plan
