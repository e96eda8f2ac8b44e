// A model as its user puts it together: units, programs and hooks, until finalize() makes the plan that runs them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "tessera/comm/world.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/plan/roles.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/optimizer.hpp"
#include "tessera/shard/options.hpp"
#include "tessera/shard/pieces.hpp"
#include "tessera/shard/training_program.hpp"
#include "tessera/shard/unit.hpp"

#pragma GCC visibility push(default)

namespace tessera {

struct [[gnu::visibility("hidden")]] ModelState;

class ShardedModel;

// A ModelRole is what the ranks at one place along the mesh's axis pipeline train: a stage.
struct ModelRole {
  std::string name;
  ShardedModel* model;
  std::unique_ptr<Optimizer> optimizer = nullptr;  // as finalize() takes
};
// In place of finalize() where ranks have roles. Every rank makes the models of all roles, in the order of the axis
// pipeline, which are proved together, messages between neighbours among them (CollectiveKind::send), and compared
// across ranks; of its own role's alone it takes the memory. All stay as long as that is used, whose whole() and
// gradient_norms() are of all. Returns which role is this rank's. Collective; synchronises. Throws as
// finalize() does, and UsageError where a message has no other side or roles wait for each other, for outer steps, and
// on a mesh without an axis pipeline of that many places. The norm is that of all roles' units, and
// clipping, skipping and the loss scale follow it: give roles the same optimizer and loss scale.
std::size_t finalize_roles(std::span<ModelRole> roles);
// The plans that it compiles, of models that are finalized no more: on one rank, without proof and memory.
std::vector<plan::RankRole> plan_roles(std::span<ModelRole> roles);

class ShardedModel {
 public:
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  // One unit per call, in the order of use. Default name: "units.N". The module must keep its address. Names are
  // unique.
  Unit& add(Module& module, std::string_view name = {});
  Unit& add(Module& module, UnitOptions options);
  // The layer below modules: named parameters, and windows opened by hand or with a callback.
  Unit& add_unit(UnitOptions options, std::span<const NamedParameter> parameters,
                 std::span<const NamedBuffer> buffers = {}, std::span<const NamedCollective> collectives = {});
  Unit& add_unit(std::string_view name, std::span<const NamedParameter> parameters);

  // Says what a step is, where it is not every unit forward and then backward in reverse; called more than once, a
  // model has several kinds of steps. Before finalize(), after the units were added; the same on every rank.
  TrainingProgram& add_program(ProgramOptions options);
  // Called for every unit that trains, once per step. Before finalize(); the same on every rank; a later one takes the
  // place of an earlier one. What it throws aborts the world.
  void on_reduced_gradient(GradientHook hook);

  // Makes layout and plan, verifies the plan, compares its hash across ranks, takes the arena, fills this rank's share
  // of the initial values. Collective; synchronises. Throws UsageError, MemoryError, or CommunicationError when ranks
  // differ. The optimizer is that of all programs that bring none of their own; where each does, none is needed.
  void finalize(std::unique_ptr<Optimizer> optimizer = nullptr);

  // Makes a new plan after Parameter::set_frozen() changed what is trained. Weights, buffers, step count, loss scale
  // and the optimizer's states stay: of what is frozen they wait in the host's memory, of what is new they are zero.
  // Only between steps. Collective; synchronises. While it runs, the rank holds its share of the old state twice.
  // Spans and pointers taken before are invalid. What is refused by UsageError, CommunicationError or the memory limit
  // leaves all as it was; where memory or a rank fails later, the values are gone, and every other call says so.
  void recompile();
  // The frozen parameters whose states wait so, of which checkpoints have none.
  std::vector<const Parameter*> waiting() const;
  // States that wait so are those of a run that is given up: they begin at zero when they are trained again.
  void drop_waiting();

  const plan::Plan& plan() const;
  // Those of all roles, in their order; where ranks have none, the one.
  std::vector<const plan::Plan*> plans() const;
  const FullyShardOptions& options() const;
  World& world();
  std::size_t unit_count() const;
  Unit& unit(std::size_t index);  // in the order of add()
  const Unit& unit(std::size_t index) const;

 protected:
  ShardedModel(World& world, FullyShardOptions options);
  ~ShardedModel();

  ModelState& state() const { return *state_; }

 private:
  friend std::size_t finalize_roles(std::span<ModelRole> roles);
  friend std::vector<plan::RankRole> plan_roles(std::span<ModelRole> roles);
  std::unique_ptr<ModelState> state_;
};

}  // namespace tessera

#pragma GCC visibility pop
