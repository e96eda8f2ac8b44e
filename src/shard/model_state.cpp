// A question that comes out of place is refused here.
#include "shard/model_state.hpp"

#include <fmt/format.h>

namespace tessera {

World& ModelState::world() const {
  if (world_or_null != nullptr) return *world_or_null;
  throw UsageError(
      "a FullyShard was used after its World had ended: it lives no longer than the function that run() or launch() "
      "called");
}

Executor& ModelState::executor() {
  world();
  if (recording) {
    throw UsageError(
        "a pass that is recorded opens windows and nothing else: update() and whatever looks at the model "
        "stand outside it");
  }
  require_values();
  if (!executor_or_null && role) {
    throw UsageError(
        fmt::format("this model is of role {}, and this rank has another one: finalize_roles() returned which", *role));
  }
  if (!executor_or_null) throw UsageError("the model is not finalized: call finalize() with an optimizer first");
  return *executor_or_null;
}

Executor& ModelState::executor_between_steps(std::string_view call) {
  executor().require_between_steps(call);
  return *executor_or_null;
}

WindowHost& ModelState::windows() {
  if (recording) return *recording;
  return executor();
}

std::vector<ModelState::InRole> ModelState::in_roles() const {
  if (models_of_roles.empty()) return {{this, &plan}};
  std::vector<InRole> result;
  for (std::size_t each = 0; each < roles.size(); ++each) result.push_back({models_of_roles[each], &roles[each].plan});
  return result;
}

Unit& ModelState::unit_of(const Module& module) const {
  const auto found = modules.find(&module);
  if (found == modules.end()) throw UsageError("this module was not added to the model (or moved since)");
  return *found->second;
}

void ModelState::throw_foreign(const char* what, const Shape& shape) {
  throw UsageError(
      fmt::format("a {} of shape {} was asked for that does not belong to this model", what, to_string(shape)));
}

void ModelState::require_mine(const Unit& unit) const {
  if (is_mine(unit)) return;
  throw UsageError(fmt::format("unit {} belongs to another model", unit.name()));
}

// Anew they would be the initial ones.
void ModelState::require_values() const {
  if (!values_are_gone) return;
  throw UsageError(
      "recompile() failed half way, and the model's values went with its old plan: make the model anew, and load a "
      "checkpoint");
}

}  // namespace tessera
