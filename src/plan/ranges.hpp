// The ranges that operations name: the whole of a unit in a buffer, or this rank's shard of it.
#pragma once

#include "tessera/plan/memory.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera::plan {

inline Range whole_range(const Plan& plan, std::size_t unit, std::size_t buffer, DType type) {
  return {buffer, Bytes(0), Bytes(0), size_of(type) * plan.layouts[unit].padded_elements()};
}

// This rank's shard inside a buffer that holds the whole unit.
inline Range mine_in_whole(const Plan& plan, std::size_t unit, std::size_t buffer, DType type) {
  const Bytes shard = size_of(type) * plan.layouts[unit].shard_elements();
  return {buffer, Bytes(0), shard, shard};
}

// This rank's shard of a persistent fp32 buffer: a view of its place in a whole one, else all there is.
inline Range my_shard(const Plan& plan, std::size_t unit, std::size_t buffer) {
  if (plan.holds_whole(unit, buffer)) return mine_in_whole(plan, unit, buffer, DType::fp32);
  return {buffer, Bytes(0), Bytes(0), size_of(DType::fp32) * plan.layouts[unit].shard_elements()};
}

// What this rank's update reads or writes of a persistent fp32 buffer.
inline Range updated(const Plan& plan, std::size_t unit, std::size_t buffer) {
  return plan.updates_whole() ? whole_range(plan, unit, buffer, DType::fp32) : my_shard(plan, unit, buffer);
}

inline Range scalars_range(const Plan& plan) { return {plan.scalars, Bytes(0), Bytes(0), scalars_size}; }
inline Range loss_scale_range(const Plan& plan) { return {plan.scalars, loss_scale_offset, Bytes(0), Bytes(4)}; }

// Partial norms: one row of units per rank.
inline Range all_norms(const Plan& plan) {
  return {plan.norms, Bytes(0), Bytes(0), norm_size * (plan.options.ranks * plan.units.size())};
}
inline Range my_norms(const Plan& plan) {
  const Bytes row = norm_size * plan.units.size();
  return {plan.norms, Bytes(0), row, row};
}
inline Range my_norm(const Plan& plan, std::size_t unit) {
  return {plan.norms, norm_size * unit, norm_size * plan.units.size(), norm_size};
}

}  // namespace tessera::plan
