// Plans broken in one place: each class applies one kind of damage at every place of a plan. The verifier must object
// to all.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// Takes what a class makes.
struct MutantSink {
  std::function<void(Plan mutant, std::string place)> take;
  // Counts a place at which the damage makes no hazard, or cannot be made; the class says why.
  std::function<void()> exclude;
};

struct MutantClass {
  std::string_view name;
  bool on_one_rank;  // all ranks but the last keep the sound plan
  void (*make)(const Plan& plan, const MutantSink& sink);
};

std::vector<MutantClass> wait_mutants();        // waits and records
std::vector<MutantClass> range_mutants();       // sizes and shards
std::vector<MutantClass> state_mutants();       // types and blocks of optimizers' states
std::vector<MutantClass> slot_mutants();        // releases, slots, addresses
std::vector<MutantClass> collective_mutants();  // ranks that disagree
std::vector<MutantClass> group_mutants();       // collectives of several units
std::vector<MutantClass> whole_mutants();       // tensors that an optimizer sees whole
std::vector<MutantClass> ahead_mutants();       // updates ahead of the norm

}  // namespace tessera::plan
