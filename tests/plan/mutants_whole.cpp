// Tensors that are seen whole: owners and places that are wrong, and steps of an update that are left out or turned
// round.
#include <algorithm>
#include <string>
#include <utility>

#include "mutants.hpp"
#include "plan_edits.hpp"

namespace tessera::plan {

namespace {

template <typename Damage>
void damage_tensors(const Plan& plan, const MutantSink& sink, Damage damage) {
  for (std::size_t group = 0; group < plan.whole_groups.size(); ++group) {
    for (std::size_t tensor = 0; tensor < plan.whole_groups[group].tensors.size(); ++tensor) {
      Plan mutant = plan;
      if (!damage(mutant.whole_groups[group], tensor)) {
        sink.exclude();
        continue;
      }
      const WholeTensor& of = plan.whole_groups[group].tensors[tensor];
      sink.take(std::move(mutant), plan.units[of.unit].parameters[of.parameter].name);
    }
  }
}

void owner_is_nobody(const Plan& plan, const MutantSink& sink) {
  damage_tensors(plan, sink, [&](WholeGroup& group, std::size_t tensor) {
    group.tensors[tensor].owner = plan.mesh.size(group.axes);
    return true;
  });
}

void tensor_upon_another(const Plan& plan, const MutantSink& sink) {
  damage_tensors(plan, sink, [](WholeGroup& group, std::size_t tensor) {
    WholeTensor& mine = group.tensors[tensor];
    const auto other = std::find_if(group.tensors.begin(), group.tensors.end(), [&](const WholeTensor& each) {
      return &each != &mine && each.owner == mine.owner;
    });
    if (other == group.tensors.end()) return false;
    mine.offset = other->offset;
    return true;
  });
}

void tensor_beyond_the_room(const Plan& plan, const MutantSink& sink) {
  damage_tensors(plan, sink, [](WholeGroup& group, std::size_t tensor) {
    group.tensors[tensor].offset = group.size;
    return true;
  });
}

void tensor_left_out(const Plan& plan, const MutantSink& sink) {
  damage_tensors(plan, sink, [](WholeGroup& group, std::size_t tensor) {
    group.tensors.erase(group.tensors.begin() + static_cast<std::ptrdiff_t>(tensor));
    return true;
  });
}

void tensor_twice(const Plan& plan, const MutantSink& sink) {
  damage_tensors(plan, sink, [](WholeGroup& group, std::size_t tensor) {
    WholeTensor again = group.tensors[tensor];
    again.owner += 1;
    group.tensors.push_back(again);
    return true;
  });
}

bool is_of_whole_tensors(const Operation& operation) { return operation.whole_group != no_group; }

void step_left_out(const Plan& plan, const MutantSink& sink) {
  at_each(plan, sink, is_of_whole_tensors, [](Plan& mutant, EventPoint point) {
    erase(mutant, point);
    return true;
  });
}

void another_groups(const Plan& plan, const MutantSink& sink) {
  at_each(plan, sink, is_of_whole_tensors, [](Plan& mutant, EventPoint point) {
    Operation& operation = mutant.segments[point.segment].operations[point.operation];
    operation.whole_group = (operation.whole_group + 1) % mutant.whole_groups.size();
    return mutant.whole_groups.size() > 1;
  });
}

// A unit's shares stay where they are, or do not come back.
void unit_stays_behind(const Plan& plan, const MutantSink& sink) {
  at_each(plan, sink, is_of_whole_tensors, [](Plan& mutant, EventPoint point) {
    Operation& operation = mutant.segments[point.segment].operations[point.operation];
    if (operation.kind != OperationKind::redistribute) return false;
    const auto direction = std::find_if(operation.accesses.begin(), operation.accesses.end(),
                                        [](const Access& access) { return access.role == Role::direction; });
    operation.accesses.erase(direction);
    return true;
  });
}

void applied_before(const Plan& plan, const MutantSink& sink) {
  const auto applies = [](const Operation& operation) { return operation.kind == OperationKind::apply; };
  at_each(plan, sink, applies, [](Plan& mutant, EventPoint point) {
    std::size_t transform = point.operation;
    while (mutant.at({point.segment, transform}).kind != OperationKind::transform) --transform;
    exchange(mutant, point.segment, transform, point.operation);
    return true;
  });
}

}  // namespace

std::vector<MutantClass> whole_mutants() {
  return {{"a whole tensor's owner is nobody", false, owner_is_nobody},
          {"a whole tensor upon another", false, tensor_upon_another},
          {"a whole tensor beyond its room", false, tensor_beyond_the_room},
          {"a whole tensor left out", false, tensor_left_out},
          {"a whole tensor twice", false, tensor_twice},
          {"a step with whole tensors left out", false, step_left_out},
          {"a step with another group's tensors", false, another_groups},
          {"a step with another group's on one rank", true, another_groups},
          {"a unit's directions stay behind", false, unit_stays_behind},
          {"applied before owners have worked", false, applied_before}};
}

}  // namespace tessera::plan
