// Makes the plan of a step from layout, options and program. A pure function: the same input gives the same plan on
// every rank.
#pragma once

#include <vector>

#include "tessera/plan/plan.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

struct CompileInput {
  std::vector<UnitSpec> units;    // in the order of use; names unique
  std::vector<Program> programs;  // over these units; one or several
  PlanOptions options;
  std::vector<StateSpec> optimizer_states;  // AdamW: {"m", "v"}; Program may differ
};

// Throws UsageError for options out of range, an impossible combination, an empty model, or names used twice.
Plan compile(const CompileInput& input);

}  // namespace tessera::plan

#pragma GCC visibility pop
