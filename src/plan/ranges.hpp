// Ranges of bytes: those that operations name (the whole of a unit in a buffer, or this rank's shard of it), and
// whether two can share a byte on one rank.
#pragma once

#include "tessera/plan/memory.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// ---- overlap ----
// Exact for the first and the last rank, which represent all: ranges are linear in the rank.

struct Interval {
  std::uint64_t begin;
  std::uint64_t end;
};

inline Interval interval(const Range& range, std::size_t rank) {
  const Bytes begin = range.offset + range.rank_stride * rank;
  return {begin.count(), (begin + range.size).count()};
}

inline bool overlap(Interval a, Interval b) { return a.begin < b.end && b.begin < a.end; }
inline bool contains(Interval outer, Interval inner) {
  return inner.begin >= inner.end || (outer.begin <= inner.begin && inner.end <= outer.end);
}

inline bool writes(AccessMode mode) { return mode != AccessMode::read; }
inline bool reads(AccessMode mode) { return mode == AccessMode::read || mode == AccessMode::update; }

// ---- what operations name ----

inline Range whole_range(const Plan& plan, std::size_t unit, std::size_t buffer, DType type) {
  return {buffer, Bytes(0), Bytes(0), size_of(type) * plan.layouts[unit].padded_elements()};
}

// A part of the whole unit.
inline Range part_range(const Plan& plan, std::size_t unit, std::size_t buffer, DType type, Part part) {
  const UnitLayout& layout = plan.layouts[unit];
  return {buffer, size_of(type) * layout.begin(part), Bytes(0), size_of(type) * layout.padded_elements(part)};
}

// The whole gradient: that of the trained part.
inline Range gradient_range(const Plan& plan, std::size_t unit, std::size_t buffer, DType type) {
  return part_range(plan, unit, buffer, type, Part::trained);
}

// This rank's shard of a part, inside a buffer that holds the whole unit.
inline Range mine_in_whole(const Plan& plan, std::size_t unit, std::size_t buffer, DType type, Part part) {
  const UnitLayout& layout = plan.layouts[unit];
  const Bytes shard = size_of(type) * layout.shard_elements(part);
  return {buffer, size_of(type) * layout.begin(part), shard, shard};
}

// This rank's shard of a part in a persistent fp32 buffer: a view of its place in a whole one, else its own place.
inline Range my_shard(const Plan& plan, std::size_t unit, std::size_t buffer, Part part = Part::trained) {
  if (plan.holds_whole(unit, buffer)) return mine_in_whole(plan, unit, buffer, DType::fp32, part);
  const UnitLayout& layout = plan.layouts[unit];
  const Bytes element = size_of(DType::fp32);
  return {buffer, element * layout.begin_in_shard(part), Bytes(0), element * layout.shard_elements(part)};
}

// What this rank's update reads or writes of a persistent fp32 buffer.
inline Range updated(const Plan& plan, std::size_t unit, std::size_t buffer) {
  return plan.updates_whole() ? gradient_range(plan, unit, buffer, DType::fp32) : my_shard(plan, unit, buffer);
}

inline Range untrained_range(const Plan& plan, std::size_t unit) {
  const std::size_t buffer = plan.unit_buffers[unit].untrained;
  return {buffer, Bytes(0), Bytes(0), plan.buffers[buffer].size};
}

inline Range scalars_range(const Plan& plan) { return {plan.scalars, Bytes(0), Bytes(0), scalars_size}; }
inline Range loss_scale_range(const Plan& plan) { return {plan.scalars, loss_scale_offset, Bytes(0), Bytes(4)}; }

// Partial norms: one row of trained units per rank.
inline Range all_norms(const Plan& plan) {
  return {plan.norms, Bytes(0), Bytes(0), norm_size * (plan.options.ranks * plan.trained_units())};
}
inline Range my_norms(const Plan& plan) {
  const Bytes row = norm_size * plan.trained_units();
  return {plan.norms, Bytes(0), row, row};
}
inline Range my_norm(const Plan& plan, std::size_t unit) {
  return {plan.norms, norm_size * plan.norm_columns[unit], norm_size * plan.trained_units(), norm_size};
}

}  // namespace tessera::plan
