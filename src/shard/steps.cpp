// Windows are asked of who opens them now, and what ends a step of the executor.
#include "tessera/shard/steps.hpp"

#include <fmt/format.h>

#include <cmath>

#include "shard/model_state.hpp"

namespace tessera {

using plan::WindowKind;

namespace {

void require_no_outer_steps(const ModelState& model, std::string_view what) {
  if (!model.plan.diverges()) return;
  throw UsageError(
      fmt::format("{} does not go with outer steps: replicas that train by themselves have no mean over samples in "
                  "common, and must not lose count of each other's steps",
                  what));
}

float checked_learning_rate(ModelState& model, std::optional<float> asked, std::string_view call) {
  const float rate = asked.value_or(model.optimizers[model.executor().program()]->learning_rate());
  if (std::isfinite(rate) && rate >= 0.0f) return rate;
  throw UsageError(fmt::format("{}({}): a learning rate is finite and at least 0", call, rate));
}

void require_weight(const ModelState& model, double weight) {
  require_no_outer_steps(model, "a weight in update()");
  if (std::isfinite(weight) && weight >= 0.0) return;
  throw UsageError(fmt::format("update() with weight {}: a weight is finite and at least 0", weight));
}

// How many they are is told when the step's windows are done.
void require_weights_of_granules(const ModelState& model, const UpdateOptions& options) {
  if (options.weight && model.plan.has_granules()) {
    throw UsageError(
        "update() with one weight for all of a rank's samples, whose sum depends on the number of ranks, and the model "
        "has granules: give granule_weights, one for each granule");
  }
  if (options.granule_weights.empty() || model.plan.has_granules()) return;
  throw UsageError("update() with granule_weights, and the model has no granules: give weight");
}

void skip_step_at(ModelState& model, std::optional<float> asked) {
  Executor& executor = model.executor();
  require_no_outer_steps(model, "skip_step()");
  executor.skip_step(checked_learning_rate(model, asked, "skip_step"));
}

void skip_window(ModelState& model, const plan::WindowUse& use) {
  model.recording ? model.recording->open(use).close() : model.executor().skip(use);
}

}  // namespace

// ---- windows ----

void ModelSteps::begin(const TrainingProgram& program) {
  Executor& executor = state().executor();
  const auto& programs = state().programs;
  if (program.index() < programs.size() && &programs[program.index()]->handle == &program) {
    return executor.begin(program.index());
  }
  throw UsageError(fmt::format("program \"{}\" belongs to another model", program.name()));
}

void ModelSteps::skip(Unit& unit, WindowKind kind) {
  if (!unit.options().optional) {
    throw UsageError(fmt::format("unit {} cannot be skipped: add it with UnitOptions::optional", unit.name()));
  }
  state().require_mine(unit);
  WindowHost& windows = state().windows();
  if (kind == WindowKind::recompute) require_no_setting(unit);
  if (unit.options().recompute && kind == WindowKind::backward) {
    skip_window(state(), {unit.index(), WindowKind::recompute});  // refused, the call stays
    windows.kept_calls().drop(unit.index());
  }
  skip_window(state(), {unit.index(), kind});
  if (unit.options().recompute && kind == WindowKind::forward) windows.kept_calls().keep_none(unit.index());
}

Window ModelSteps::open(Unit& unit, WindowKind kind) {
  WindowHost& windows = state().windows();
  state().require_mine(unit);
  return windows.open({unit.index(), kind});
}

void ModelSteps::take_place(std::size_t place) { state().windows().take_place(place); }
void ModelSteps::compute_again(const Unit& unit) { state().windows().compute_again(unit); }

Unit& ModelSteps::unit_of(const Module& module) { return state().unit_of(module); }

void ModelSteps::require_forward(const Unit& unit, WindowKind kind) {
  if (kind == WindowKind::recompute) require_no_setting(unit);
  if (kind != WindowKind::backward) return;
  throw UsageError("pass() calls forward functions, in forward, recompute or evaluate windows: call backward()");
}

// ---- what ends a step ----

void ModelSteps::update() { update(UpdateOptions{}); }
void ModelSteps::update(float learning_rate) { update(UpdateOptions{.learning_rate = learning_rate}); }
void ModelSteps::update(const UpdateOptions& options) {
  Executor& executor = state().executor();
  const float learning_rate = checked_learning_rate(state(), options.learning_rate, "update");
  if (options.weight) require_weight(state(), *options.weight);
  for (const double weight : options.granule_weights) require_weight(state(), weight);
  require_weights_of_granules(state(), options);
  executor.update(learning_rate, {.weight = options.weight, .granules = options.granule_weights});
}
void ModelSteps::expect(float learning_rate) {
  Executor& executor = state().executor();
  executor.operations().expect(checked_learning_rate(state(), learning_rate, "expect"));
}
void ModelSteps::skip_step() { skip_step_at(state(), std::nullopt); }
void ModelSteps::skip_step(float learning_rate) { skip_step_at(state(), learning_rate); }
void ModelSteps::discard_gradients() {
  Executor& executor = state().executor();
  require_no_outer_steps(state(), "discard_gradients()");
  executor.discard_gradients();
}
Granules ModelSteps::granules() const {
  const ModelState& model = state();
  const Executor& executor = state().executor();
  return model.plan.granules(executor.program(), executor.place());
}
bool ModelSteps::finished() { return last_step().finished; }

StepReport ModelSteps::last_step() {
  const kernels::StepScalars& now = state().executor().look_at_steps();
  return {.gradient_norm = now.gradient_norm,
          .skipped = now.skip != 0 && now.weight != 0.0,
          .updates = now.step,
          .skipped_updates = now.skipped_steps,
          .loss_scale = now.loss_scale,
          .weight = now.weight,
          .finished = now.idle != 0};
}

// ---- what layers use; also while a pass is recorded ----

Stream& ModelSteps::stream() { return state().recording ? state().recording->compute() : state().executor().compute(); }
const float* ModelSteps::loss_scale() const {
  if (state().recording) return state().recording->scale();
  Executor& executor = state().executor();
  return &executor.memory().scalars(executor.program())->loss_scale;
}
void ModelSteps::synchronize() {
  state().recording ? state().recording->compute().synchronize() : state().executor().synchronize();
}
std::span<std::byte> ModelSteps::activation_memory() {
  if (state().recording) return state().recording->activation_memory();
  return state().executor().memory().bytes(state().plan.activations);
}

}  // namespace tessera
