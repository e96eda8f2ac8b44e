// Updates ahead of the norm: steps of one that are left out or turned round, and values that are used before it is
// settled.
#include <algorithm>
#include <string>
#include <utility>

#include "mutants.hpp"
#include "plan_edits.hpp"

namespace tessera::plan {

namespace {

bool is_supposed(const Operation& operation) {
  return std::any_of(operation.accesses.begin(), operation.accesses.end(),
                     [](const Access& access) { return access.role == Role::supposed; });
}

bool is_step_of_one(const Operation& operation) {
  return operation.kind == OperationKind::keep || is_supposed(operation);
}

bool settles(const Operation& operation) { return operation.kind == OperationKind::settle && is_supposed(operation); }

}  // namespace

std::vector<MutantClass> ahead_mutants() {
  return {{"a step of an update ahead left out", false,
           each(is_step_of_one,
                [](Plan& mutant, EventPoint point) {
                  // Whatever the scalars were supposed to be, what differs is taken back.
                  if (mutant.at(point).kind == OperationKind::begin_update) return false;
                  erase(mutant, point);
                  return true;
                })},
          {"kept behind the update", false,
           each(is_of(OperationKind::keep),
                [](Plan& mutant, EventPoint point) {
                  exchange(mutant, point.segment, point.operation, point.operation + 1);
                })},
          // The step's scalars pass for those of the norm.
          {"settled by itself", false,
           each_changed(settles, [](Operation& settle) { settle.kind = OperationKind::optimize; })},
          // Parameters come from the host while it is not known what they are.
          {"used before it is settled", false,
           each(settles,
                [](Plan& mutant, EventPoint point) {
                  const auto& operations = mutant.segments[point.segment].operations;
                  const auto fetch = std::ranges::find_if(operations, [&](const Operation& each) {
                    return each.stream == StreamId::fetch && each.unit == operations[point.operation].unit;
                  });
                  move_up(mutant, point.segment, static_cast<std::size_t>(fetch - operations.begin()), point.operation);
                })},
          {"updated before its gradient arrives", false,
           each(is_of(OperationKind::keep), [](Plan& mutant, EventPoint point) {
             const auto& operations = mutant.segments[point.segment].operations;
             std::size_t arrival = point.operation;
             while (operations[arrival].kind != OperationKind::transfer) --arrival;
             launch_before(mutant, point.segment, point.operation + 1, arrival);
           })}};
}

}  // namespace tessera::plan
