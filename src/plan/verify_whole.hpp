// Checks what a plan says of tensors that an optimizer sees whole: their groups and owners, and the order of an update.
#pragma once

#include "plan/abstract_rank.hpp"

namespace tessera::plan {

// Each of the trained tensors that want it is in one group, of the program that trains it, and has an owner; what a
// rank owns stands apart, and every rank has room for the most.
void check_whole_groups(const Plan& plan, const Report& report);

// In an update the directions of all units of a group travel to owners before these work on the tensors, and then back,
// each once, before any unit of the group applies them; that they were written is what its reads say.
void check_whole_order(const Plan& plan, std::size_t segment, const Report& report);

// Whether all directions of a group travel together, on one side of it, in the order of its units.
bool is_whole_group(const Plan& plan, const Operation& operation);

// The least bytes of the buffer that the first unit of a group has for its tensors (whole) or beside them (workspace).
Bytes room_of_group(const Plan& plan, std::size_t first, Role role);

}  // namespace tessera::plan
