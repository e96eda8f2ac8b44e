// In which order a pass opens the windows of units, and the program that has it.
#pragma once

#include <cstddef>
#include <vector>

#include "tessera/plan/program.hpp"

namespace tessera::torch {

using UnitOrder = std::vector<std::size_t>;

// The shortest order that both are part of: a pass may leave windows out, so one plan is enough for either.
UnitOrder joined(const UnitOrder& first, const UnitOrder& second);

// The same, and then the units of its reverse: to go on and back through them by turns takes one round.
UnitOrder there_and_back(const UnitOrder& order);

// Forward windows in this order, backward windows in its reverse.
plan::Program program_of(const UnitOrder& forwards, const UnitOrder& evaluations);

}  // namespace tessera::torch
