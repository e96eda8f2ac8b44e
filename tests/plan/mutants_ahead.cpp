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

void step_ahead_left_out(const Plan& plan, const MutantSink& sink) {
  at_each(plan, sink, is_step_of_one, [](Plan& mutant, EventPoint point) {
    // Whatever the scalars were supposed to be, what differs is taken back.
    if (mutant.at(point).kind == OperationKind::begin_update) return false;
    erase(mutant, point);
    return true;
  });
}

void kept_behind_the_update(const Plan& plan, const MutantSink& sink) {
  at_each(plan, sink, is_step_of_one, [](Plan& mutant, EventPoint point) {
    const auto& operations = mutant.segments[point.segment].operations;
    if (operations[point.operation].kind != OperationKind::keep) return false;
    exchange(mutant, point.segment, point.operation, point.operation + 1);
    return true;
  });
}

// The step's scalars pass for those of the norm.
void settled_by_itself(const Plan& plan, const MutantSink& sink) {
  at_each(plan, sink, is_step_of_one, [](Plan& mutant, EventPoint point) {
    Operation& settle = mutant.segments[point.segment].operations[point.operation];
    if (settle.kind != OperationKind::settle) return false;
    settle.kind = OperationKind::optimize;
    return true;
  });
}

// Parameters come from the host while it is not known what they are.
void used_before_it_is_settled(const Plan& plan, const MutantSink& sink) {
  at_each(plan, sink, is_step_of_one, [](Plan& mutant, EventPoint point) {
    const auto& operations = mutant.segments[point.segment].operations;
    if (operations[point.operation].kind != OperationKind::settle) return false;
    const auto fetch = std::find_if(operations.begin(), operations.end(), [&](const Operation& each) {
      return each.stream == StreamId::fetch && each.unit == operations[point.operation].unit;
    });
    move_up(mutant, point.segment, static_cast<std::size_t>(fetch - operations.begin()), point.operation);
    return true;
  });
}

void updated_before_its_gradient_arrives(const Plan& plan, const MutantSink& sink) {
  at_each(plan, sink, is_step_of_one, [](Plan& mutant, EventPoint point) {
    const auto& operations = mutant.segments[point.segment].operations;
    if (operations[point.operation].kind != OperationKind::keep) return false;
    std::size_t arrival = point.operation;
    while (operations[arrival].kind != OperationKind::transfer) --arrival;
    launch_before(mutant, point.segment, point.operation + 1, arrival);
    return true;
  });
}

}  // namespace

std::vector<MutantClass> ahead_mutants() {
  return {{"a step of an update ahead left out", false, step_ahead_left_out},
          {"kept behind the update", false, kept_behind_the_update},
          {"settled by itself", false, settled_by_itself},
          {"used before it is settled", false, used_before_it_is_settled},
          {"updated before its gradient arrives", false, updated_before_its_gradient_arrives}};
}

}  // namespace tessera::plan
