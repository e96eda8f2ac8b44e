// Proves a plan free of races, stale reads, early reuse and deadlock, or names the operations that break it.
//
// It runs the plan in the abstract on representative ranks, the first and the last along each axis of the mesh (the
// very last may deviate), over every sequence that the plan allows of the cold start and two steps (a program's, its
// evaluation, the refresh: what goes wrong between two of them needs no third): on each the happens-before relation as
// vector clocks over its streams, each collective one node fused across those of its group. So the order of
// collectives over all groups together is shown to end, and every gradient to reach all ranks that have it in common.
// Cost: linear in operations and quadratic in the number of programs, independent of that of ranks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/plan/plan.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

enum class ViolationKind {
  race,        // conflicting accesses that no path of streams and waits orders
  stale_read,  // an element is read that was not written since its slot was acquired
  lost,        // a slot is given back, or a sum begun anew or used, before what was written there was read; or a sum
               // is used before it is one over all ranks
  layout,      // a collective's ranges are not the layout's, or buffers overlap in the arena
  order,       // collectives without one total order of launch
  mismatch,    // ranks disagree about a collective
  deadlock,    // a cycle in the fused graph
};
std::string_view to_string(ViolationKind kind);

struct Violation {
  ViolationKind kind;
  std::string text;  // names operations, segments and buffer
};

struct Verification {
  std::vector<Violation> violations;  // the first of each kind and pair of operations
  std::size_t states = 0;             // segments run, each from some state
  std::size_t operations = 0;         // operations run in the abstract
  bool ok() const { return violations.empty(); }
};

// `all`: of any number of steps, until no new state appears; which finds nothing more, as tests show, and takes
// exponentially longer with programs.
enum class Sequences { of_two_steps, all };

Verification verify(const Plan& plan, Sequences sequences = Sequences::of_two_steps);
// All ranks follow `plan` but the last one, which follows `deviating`.
Verification verify(const Plan& plan, const Plan& deviating);

}  // namespace tessera::plan

#pragma GCC visibility pop
