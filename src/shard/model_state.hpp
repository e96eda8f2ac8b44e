// A ModelState is what a model is made of, and the questions that each part of its facade (model.hpp, steps.hpp,
// inspection.hpp) asks first: whether it may be used now, and whose a tensor is.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shard/carried_state.hpp"
#include "shard/executor.hpp"
#include "shard/recorded_pass.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/plan/roles.hpp"
#include "tessera/shard/model.hpp"  // declares ModelState with its visibility
#include "tessera/shard/options.hpp"
#include "tessera/shard/training_program.hpp"

namespace tessera {

struct DeclaredProgram {
  TrainingProgram handle;
  ProgramOptions options;
};

struct ModelState {
  ModelState(World& world, FullyShardOptions given)
      : world_or_null(&world), options(std::move(given)), ends_with_world(world.before_end([this] {
          executor_or_null.reset();
          world_or_null = nullptr;
        })) {}

  // All of these throw UsageError where there is none now.
  World& world() const;
  Executor& executor();
  Executor& executor_between_steps(std::string_view call);
  WindowHost& windows();  // those that open now: of the plan, or of a pass that is recorded
  Unit& unit_of(const Module& module) const;
  template <typename Tensor>
  Unit& unit_of(const Tensor& tensor, const char* what) const {
    if (tensor.unit() != nullptr && is_mine(*tensor.unit())) return *units[tensor.unit()->index()];
    throw_foreign(what, tensor.shape());
  }
  bool is_mine(const Unit& unit) const { return unit.index() < units.size() && units[unit.index()].get() == &unit; }
  void require_mine(const Unit& unit) const;
  void require_values() const;  // that no recompile() has lost them
  [[noreturn]] static void throw_foreign(const char* what, const Shape& shape);

  // The models that all ranks train together, each with its plan: of roles all, in their order; else this one.
  struct InRole {
    const ModelState* model;
    const plan::Plan* plan;
  };
  std::vector<InRole> in_roles() const;

  World* world_or_null;  // null once it has ended
  FullyShardOptions options;
  GradientHook hook;
  kernels::LossScaling loss_scaling;
  std::vector<std::unique_ptr<Unit>> units;
  std::map<const Module*, Unit*> modules;                  // that were added as units
  std::vector<std::unique_ptr<DeclaredProgram>> programs;  // none: the one of the options
  std::unique_ptr<Optimizer> optimizer;                    // of programs that bring none
  std::vector<const Optimizer*> optimizers;                // by program
  std::optional<RecordedPass> recording;                   // while finalize() records a pass
  std::vector<std::weak_ptr<const std::string>> held;      // why the plan must stay
  std::optional<std::size_t> role;                         // of finalize_roles(): its place in
  std::vector<plan::RankRole> roles;                       // … all of them, where this rank has this one
  std::vector<ModelState*> models_of_roles;                // … likewise
  plan::Plan plan;
  std::vector<CarriedState> carried;           // from plan to plan, by role
  bool values_are_gone = false;                // from one plan to the next, and where that has failed
  std::unique_ptr<Executor> executor_or_null;  // it uses all of the above
  // Masters and gradients of 16 bits in fp32, by unit and name, for whoever looks at them.
  std::map<std::pair<std::size_t, std::string>, std::vector<float>> copies;
  std::function<void()> refresh_buffers;  // from where an adapter's modules keep them; empty: none
  std::shared_ptr<const void> ends_with_world;
};

}  // namespace tessera
