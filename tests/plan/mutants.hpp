// Plans broken in one place: each class applies one kind of damage at every place of a plan. The verifier must object
// to all.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// Takes what a class makes.
struct MutantSink {
  std::function<void(Plan mutant, std::string place)> take;
  // Counts a place at which the damage makes no hazard, or cannot be made; the class says why.
  std::function<void()> exclude;
};

// Calls visit(point, operation) for every operation, in the plan's order.
template <typename Visit>
void each_operation(const Plan& plan, Visit visit) {
  for (std::size_t s = 0; s < plan.segments.size(); ++s) {
    const auto& operations = plan.segments[s].operations;
    for (std::size_t o = 0; o < operations.size(); ++o) visit(EventPoint{s, o}, operations[o]);
  }
}

inline Operation& operation_at(Plan& plan, EventPoint point) {
  return plan.segments[point.segment].operations[point.operation];
}

// Damages every operation that `applies` accepts, one at a time; damage(mutant, point) says whether that makes a
// mutant: where it says nothing it does.
template <typename Applies, typename Damage>
void at_each(const Plan& plan, const MutantSink& sink, Applies applies, Damage damage) {
  each_operation(plan, [&](EventPoint point, const Operation& operation) {
    if (!applies(operation)) return;
    Plan mutant = plan;
    if constexpr (std::is_void_v<decltype(damage(mutant, point))>) {
      damage(mutant, point);
    } else if (!damage(mutant, point)) {
      return;
    }
    sink.take(std::move(mutant), describe(plan, point));
  });
}

using MakeMutants = std::function<void(const Plan& plan, const MutantSink& sink)>;

struct MutantClass {
  std::string_view name;
  bool on_one_rank;  // all ranks but the last keep the sound plan
  MakeMutants make;
};

// The mutants of a class: such damage at each such operation.
template <typename Applies, typename Damage>
MakeMutants each(Applies applies, Damage damage) {
  return [=](const Plan& plan, const MutantSink& sink) { at_each(plan, sink, applies, damage); };
}

// The same for damage to the operation alone: change(operation).
template <typename Applies, typename Change>
MakeMutants each_changed(Applies applies, Change change) {
  return each(applies, [=](Plan& mutant, EventPoint point) { return change(operation_at(mutant, point)); });
}

inline auto is_of(OperationKind kind) {
  return [kind](const Operation& operation) { return operation.kind == kind; };
}

std::vector<MutantClass> wait_mutants();        // waits and records
std::vector<MutantClass> range_mutants();       // sizes and shards
std::vector<MutantClass> state_mutants();       // types and blocks of optimizers' states
std::vector<MutantClass> slot_mutants();        // releases, slots, addresses
std::vector<MutantClass> collective_mutants();  // ranks that disagree
std::vector<MutantClass> group_mutants();       // collectives of several units
std::vector<MutantClass> whole_mutants();       // tensors that an optimizer sees whole
std::vector<MutantClass> ahead_mutants();       // updates ahead of the norm

}  // namespace tessera::plan
