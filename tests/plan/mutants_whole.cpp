// Tensors that are seen whole: owners and places that are wrong, and steps of an update that are left out or turned
// round.
#include <algorithm>
#include <string>
#include <utility>

#include "mutants.hpp"
#include "plan_edits.hpp"

namespace tessera::plan {

namespace {

// Damages every tensor of every group, one at a time: damage(plan, group, tensor) as of operations.
template <typename Damage>
MakeMutants each_tensor(Damage damage) {
  return [=](const Plan& plan, const MutantSink& sink) {
    for (std::size_t group = 0; group < plan.whole_groups.size(); ++group) {
      for (std::size_t tensor = 0; tensor < plan.whole_groups[group].tensors.size(); ++tensor) {
        Plan mutant = plan;
        if (!damage(plan, mutant.whole_groups[group], tensor)) {
          sink.exclude();
          continue;
        }
        const WholeTensor& of = plan.whole_groups[group].tensors[tensor];
        sink.take(std::move(mutant), plan.units[of.unit].parameters[of.parameter].name);
      }
    }
  };
}

bool is_of_whole_tensors(const Operation& operation) { return operation.whole_group != no_group; }

bool another_groups(Plan& mutant, EventPoint point) {
  Operation& operation = operation_at(mutant, point);
  operation.whole_group = (operation.whole_group + 1) % mutant.whole_groups.size();
  return mutant.whole_groups.size() > 1;
}

}  // namespace

std::vector<MutantClass> whole_mutants() {
  return {
      {"a whole tensor's owner is nobody", false,
       each_tensor([](const Plan& plan, WholeGroup& group, std::size_t tensor) {
         group.tensors[tensor].owner = plan.mesh.size(group.axes);
         return true;
       })},
      {"a whole tensor upon another", false, each_tensor([](const Plan&, WholeGroup& group, std::size_t tensor) {
         WholeTensor& mine = group.tensors[tensor];
         const auto other = std::ranges::find_if(
             group.tensors, [&](const WholeTensor& each) { return &each != &mine && each.owner == mine.owner; });
         if (other == group.tensors.end()) return false;
         mine.offset = other->offset;
         return true;
       })},
      {"a whole tensor beyond its room", false, each_tensor([](const Plan&, WholeGroup& group, std::size_t tensor) {
         group.tensors[tensor].offset = group.size;
         return true;
       })},
      {"a whole tensor left out", false, each_tensor([](const Plan&, WholeGroup& group, std::size_t tensor) {
         group.tensors.erase(group.tensors.begin() + static_cast<std::ptrdiff_t>(tensor));
         return true;
       })},
      {"a whole tensor twice", false, each_tensor([](const Plan&, WholeGroup& group, std::size_t tensor) {
         WholeTensor again = group.tensors[tensor];
         again.owner += 1;
         group.tensors.push_back(again);
         return true;
       })},
      {"a step with whole tensors left out", false, each(is_of_whole_tensors, erase)},
      {"a step with another group's tensors", false, each(is_of_whole_tensors, another_groups)},
      {"a step with another group's on one rank", true, each(is_of_whole_tensors, another_groups)},
      // A unit's shares stay where they are, or do not come back.
      {"a unit's directions stay behind", false,
       each_changed(is_of(OperationKind::redistribute),
                    [](Operation& operation) {
                      operation.accesses.erase(std::ranges::find(operation.accesses, Role::direction, &Access::role));
                    })},
      {"applied before owners have worked", false,
       each(is_of(OperationKind::apply), [](Plan& mutant, EventPoint point) {
         std::size_t transform = point.operation;
         while (mutant.at({point.segment, transform}).kind != OperationKind::transform) --transform;
         exchange(mutant, point.segment, transform, point.operation);
       })}};
}

}  // namespace tessera::plan
