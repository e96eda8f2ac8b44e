// The passes of compile() after the layout, in their order.
#pragma once

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// Units as trainers() takes them. One without parameters counts as trained: its windows are those of any other.
std::vector<Trainable> trainable_units(const std::vector<UnitSpec>& units);

// Units whose values stand elsewhere between updates share so many slots in turn: those of one are brought or taken
// while another's are used.
inline constexpr std::size_t update_slots = 2;

// Units whose forward windows leave values to their backward ones in the host's memory take turns in so many slots: a
// unit's values travel while another's window runs.
inline constexpr std::size_t saved_slots = 2;

// Forms the groups of units whose optimizer sees tensors whole, and gives each tensor an owner: fills whole_groups.
void make_whole_groups(Plan& plan);
// The units that an update of the program visits, in its order: those of a group follow each other. no_program: those
// that nobody trains.
std::vector<std::size_t> updated_units(const Plan& plan, std::size_t program);

// Lists a plan's buffers and gives each its place in the arena: fills buffers, unit_buffers, scalars and norms of a
// plan whose options, program, units and layouts are set.
void make_buffers(Plan& plan);

// Writes down the operations of every segment, in the order of launch, with what they read and write.
void emit_segments(Plan& plan);

// Derives every wait from what operations read and write: fills Operation::waits and Plan::events. Adds only what no
// other path of streams and waits implies, over every sequence of segments that the plan allows.
void derive_waits(Plan& plan);

}  // namespace tessera::plan
