// How gradients travel: by which windows, in which type, and in which buckets, units whose gradients are reduced in one
// operation, so that small ones share a synchronisation.
//
// A bucket is a run of units in the order of their reductions, whose gradients in the wire's type add up to at most the
// cap. A unit above the cap is a bucket of its own: nothing is split, so that shards, and with them the order in which
// the norm is summed, are the same for every strategy and cap. Padding does not count: a plan's buckets do not depend
// on the number of ranks.
#pragma once

#include <vector>

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// The windows of a program's micro-batch that belong to units which it trains.
std::vector<WindowUse> trained_windows(const Plan& plan, std::size_t program);

// True when the unit's gradients add up in a buffer of their own before the reduction: several micro-batches in mode
// `local`, or several backward windows.
bool accumulates(const Plan& plan, std::size_t unit);

// True when the unit's gradient travels straight from its slot, but in another type than it is written in.
bool converts(const Plan& plan, std::size_t unit);

// True when backward windows write the unit's gradient where its sum is to stand, without a slot: a step has one of
// them, the strategy keeps the whole sum, or there is one rank; and all of it is fp32, or nothing is added to it.
bool is_written_in_place(const Plan& plan, std::size_t unit);

// The type in which the unit's reduced gradient stands: fp32, where a sum is formed.
DType sum_type(const Plan& plan, std::size_t unit);

// The type in which a unit's gradient travels: fp32 where it adds up on the rank.
DType wire_type(const Plan& plan, std::size_t unit);

struct Bucket {
  std::vector<std::size_t> units;  // in the order in which their gradients become complete
  std::size_t closes;              // reduced after this one of trained_windows' backward windows, as they close
};

// Returns the buckets of a program, in the order of reduction; each unit that it trains is in one. The plan's options,
// programs, units and layouts are set.
std::vector<Bucket> reduction_buckets(const Plan& plan, std::size_t program);

}  // namespace tessera::plan
