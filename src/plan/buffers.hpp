// Lists a plan's buffers and gives each its place in the arena.
#pragma once

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// Fills buffers, unit_buffers, scalars and norms of a plan whose options, program, units and layouts are set.
void make_buffers(Plan& plan);

// The windows of a micro-batch that belong to trained units.
std::vector<WindowUse> trained_windows(const Plan& plan);

// True when the unit's gradients add up in a buffer of their own before the reduction: several micro-batches in mode
// `local`, or several backward windows.
bool accumulates(const Plan& plan, std::size_t unit);

// True when the unit's gradient travels straight from its slot, but in another type than it is written in.
bool converts(const Plan& plan, std::size_t unit);

}  // namespace tessera::plan
