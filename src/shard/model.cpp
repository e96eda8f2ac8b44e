// From units to a running plan.
#include "tessera/shard/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "plan/fragments.hpp"
#include "plan/passes.hpp"
#include "shard/agreement.hpp"
#include "shard/model_state.hpp"
#include "shard/optimizer_runs.hpp"
#include "shard/plan_advice.hpp"
#include "tessera/device/parallel.hpp"
#include "tessera/plan/compile.hpp"
#include "tessera/plan/verify.hpp"
#include "tessera/shard/adapted_model.hpp"
#include "tessera/shard/whole_tensors.hpp"

namespace tessera {

namespace {

// Walks a module's parts and writes down what they have under its joined names. Parts that are units of their own are
// left out.
class Collector : public ModuleVisitor {
 public:
  explicit Collector(const std::map<const Module*, Unit*>& units) : units_(units) {}

  void operator()(std::string_view name, Parameter& parameter) override { note(name, parameter, parameters); }
  void operator()(std::string_view name, Buffer& buffer) override { note(name, buffer, buffers); }
  void operator()(std::string_view name, Collective& collective) override { note(name, collective, collectives); }
  void operator()(std::string_view name, Module& part) override {
    if (units_.contains(&part)) return;
    const std::size_t length = prefix_.size();
    prefix_ += std::string(name) + ".";
    part.visit(*this);
    prefix_.resize(length);
  }

  std::vector<NamedParameter> parameters;
  std::vector<NamedBuffer> buffers;
  std::vector<NamedCollective> collectives;

 private:
  template <typename Tensor>
  void note(std::string_view name, Tensor& tensor, std::vector<Named<Tensor>>& list) {
    list.push_back({prefix_ + std::string(name), &tensor});
  }

  const std::map<const Module*, Unit*>& units_;
  std::string prefix_;
};

// ---- what is added ----

template <typename Tensor>
void require_in_no_other_model(const ModelState& model, const std::string& unit, const Named<Tensor>& named) {
  const Unit* const owner = named.tensor->unit();
  if (owner == nullptr || model.is_mine(*owner)) return;
  throw UsageError(
      fmt::format("unit {}: \"{}\" is in another FullyShard, as {}: a module trains in one at a time; destroy that one "
                  "first",
                  unit, named.name, named.tensor->name()));
}

void require_mine(const ModelState& model, const std::string& program, const Unit* unit) {
  if (unit == nullptr) throw UsageError(fmt::format("program \"{}\" names a unit that is null", program));
  if (model.is_mine(*unit)) return;
  throw UsageError(fmt::format("program \"{}\" names unit {}, which belongs to another model", program, unit->name()));
}

// ---- programs and optimizers ----

std::vector<plan::Program> plan_programs(const ModelState& model) {
  if (model.programs.empty()) return {model.options.program.value_or(plan::Program::chain(model.units.size()))};
  if (model.options.program) {
    throw UsageError("the model has FullyShardOptions::program and add_program(): give its programs in one way");
  }
  const auto uses = [](const std::vector<UnitWindow>& windows) {
    std::vector<plan::WindowUse> result;
    for (const UnitWindow& window : windows) {
      result.push_back({window.unit->index(), window.kind, window.resumes});
    }
    return result;
  };
  std::vector<plan::Program> result;
  for (const auto& declared : model.programs) {
    const ProgramOptions& options = declared->options;
    plan::Program program{.micro_batch = uses(options.windows),
                          .evaluation = uses(options.evaluation),
                          .name = options.name,
                          .optimizer_states = model.optimizers[result.size()]->state_specs(),
                          .micro_batches = options.micro_batches};
    if (options.trains) {
      program.trains.emplace();
      for (const Unit* unit : *options.trains) program.trains->push_back(unit->index());
    }
    result.push_back(std::move(program));
  }
  return result;
}

std::vector<UnitWindow> recorded(ModelState& model, std::function<void()>& pass) {
  std::vector<UnitWindow> windows;
  for (const plan::WindowUse& use : model.recording->run(pass)) {
    windows.push_back({model.units[use.unit].get(), use.kind, use.resumes});
  }
  pass = nullptr;  // what it refers to may end now
  return windows;
}

void record_programs(ModelState& model) {
  for (const auto& declared : model.programs) {
    ProgramOptions& options = declared->options;
    if (!options.pass && !options.evaluation_pass) continue;
    model.recording.emplace(RecordedPass::Subject{.world = model.world(),
                                                  .units = model.units,
                                                  .modules = model.modules,
                                                  .precision = model.options.precision,
                                                  .activations = model.options.activations,
                                                  .program = options.name,
                                                  .trains = options.trains});
    const std::shared_ptr<void> ends(nullptr, [&](void*) { model.recording.reset(); });
    if (options.pass) options.windows = recorded(model, options.pass);
    if (options.evaluation_pass) options.evaluation = recorded(model, options.evaluation_pass);
  }
}

void choose_optimizers(ModelState& model) {
  model.optimizers.clear();  // of a finalize() that failed
  for (const auto& declared : model.programs) {
    const Optimizer* const own = declared->options.optimizer.get();
    if (own == nullptr && model.optimizer == nullptr) {
      throw UsageError(
          fmt::format("program \"{}\" has no optimizer: give it one, or finalize()", declared->handle.name()));
    }
    model.optimizers.push_back(own != nullptr ? own : model.optimizer.get());
  }
  if (!model.programs.empty()) return;
  if (model.optimizer == nullptr) throw UsageError("finalize() needs an optimizer");
  model.optimizers.push_back(model.optimizer.get());
}

bool every_optimizer_widens(const ModelState& model) {
  const auto own_widens = [](const std::unique_ptr<Unit>& unit) {
    return unit->options().optimizer == nullptr || unit->options().optimizer->widens();
  };
  return std::all_of(model.optimizers.begin(), model.optimizers.end(),
                     [](const Optimizer* each) { return each->widens(); }) &&
         std::all_of(model.units.begin(), model.units.end(), own_widens);
}

void check_optimizers_of_units(const ModelState& model, const plan::Plan& plan) {
  for (const auto& unit : model.units) {
    const Optimizer* const own = unit->options().optimizer.get();
    if (own == nullptr || !plan.trains(unit->index())) continue;
    const Optimizer& program = *model.optimizers[plan.trainers[unit->index()]];
    const float clip_norm = own->step_settings().clip_norm;
    if (clip_norm != 0.0f && clip_norm != program.step_settings().clip_norm) {
      throw UsageError(
          fmt::format("unit {}: its optimizer's clip_norm is {}, but gradients are clipped by the norm of all units "
                      "that a step trains: set it in the optimizer of the program alone",
                      unit->name(), clip_norm));
    }
    if (program.learning_rate() > 0.0f) continue;
    throw UsageError(
        fmt::format("unit {} has an optimizer of its own, whose learning rate follows the step's in proportion to the "
                    "rate of the program's optimizer, and that is 0: give it the one that most steps have",
                    unit->name()));
  }
}

// A group, or a pattern, is for parameters that its optimizer updates, or may when they are trained.
void check_groups(const ModelState& model, const plan::Plan& plan) {
  std::map<const Optimizer*, std::vector<std::string>> names;
  for (const auto& unit : model.units) {
    const Optimizer* const own = unit->options().optimizer.get();
    for (std::size_t program = 0; program < model.optimizers.size(); ++program) {
      if (plan.trains(unit->index()) && plan.trainers[unit->index()] != program) continue;
      auto& of_it = names[own != nullptr ? own : model.optimizers[program]];
      for (const Parameter* parameter : unit->parameters()) of_it.push_back(parameter->name());
    }
  }
  for (const auto& entry : names) {
    const Optimizer* const optimizer = entry.first;
    const std::vector<std::string>& updated = entry.second;
    const auto require_match = [&](const std::string& what, const std::vector<std::string>& patterns) {
      const auto is_matched = [&](const std::string& name) {
        return std::any_of(patterns.begin(), patterns.end(),
                           [&](const std::string& pattern) { return matches(pattern, name); });
      };
      if (std::any_of(updated.begin(), updated.end(), is_matched)) return;
      throw UsageError(fmt::format("{} of optimizer {} matches no parameter that it updates: \"{}\"; {}", what,
                                   optimizer->name(), fmt::join(patterns, "\" \""),
                                   updated.empty() ? "there is none" : "the first is " + updated.front()));
    };
    const std::vector<ParameterGroup> groups = optimizer->groups();
    for (std::size_t i = 0; i < groups.size(); ++i) require_match(fmt::format("groups[{}]", i), groups[i].patterns);
    if (optimizer->whole_tensors() == nullptr || plan.options.role) continue;  // a stage has a part of the names
    for (const std::string& pattern : optimizer->whole_tensors()->patterns()) require_match("a pattern", {pattern});
  }
}

// Between two outer steps replicas differ, and what is frozen there would differ for ever.
void require_met(const ModelState& model, const plan::Plan& next) {
  const plan::Plan& plan = model.plan;
  const std::size_t updates = model.executor_or_null->updates();
  if (!plan.diverges() || updates == 0) return;
  const std::optional<std::size_t> outer = plan.outer_after(updates);
  const std::vector<std::size_t> met =
      outer ? plan::outer_fragments(plan)[plan.segments[*outer].fragment] : std::vector<std::size_t>{};
  for (const auto& unit : model.units) {
    const std::size_t index = unit->index();
    if (!plan.trains(index) || std::find(met.begin(), met.end(), index) != met.end()) continue;
    for (std::size_t p = 0; p < unit->parameters().size(); ++p) {
      const bool stays = next.trains(index) && next.layouts[index].part(p) == plan::Part::trained;
      if (stays || plan.layouts[index].part(p) == plan::Part::frozen) continue;
      throw UsageError(fmt::format(
          "recompile(): {} is to be frozen {} updates after an outer step, where each replica has another value of it, "
          "for ever then: freeze it right after an outer step of its unit, which comes every {} updates",
          unit->parameters()[p]->name(), updates % model.options.outer.every, model.options.outer.every));
    }
  }
}

kernels::OuterSettings outer_settings(const ModelState& model) {
  return {model.options.outer.learning_rate, model.options.outer.momentum};
}

void check_outer_settings(const ModelState& model) {
  const auto [learning_rate, momentum] = outer_settings(model);
  if (!(std::isfinite(learning_rate) && learning_rate > 0.0f)) {
    throw UsageError(fmt::format("outer.learning_rate is {}: choose a finite one above 0", learning_rate));
  }
  if (momentum >= 0.0f && momentum < 1.0f) return;
  throw UsageError(fmt::format("outer.momentum is {}: choose one in [0, 1)", momentum));
}

// ---- the plan ----

// Files are written from and read into the host's memory: on another device that takes a copy in any case.
Checkpointing checkpointing(const ModelState& model) {
  if (model.options.checkpointing == Checkpointing::none) return Checkpointing::none;
  return model.world().device().kind() == DeviceKind::cpu ? model.options.checkpointing : Checkpointing::background;
}

const WholeTensors* whole_tensors_of(const ModelState& model, const Unit& unit, std::size_t trainer) {
  const Optimizer* const own = unit.options().optimizer.get();
  if (own != nullptr) return own->whole_tensors();
  return trainer == plan::no_program ? nullptr : model.optimizers[trainer]->whole_tensors();
}

// Asks the optimizer of each unit which tensors it wants to see whole.
void ask_for_whole_tensors(const ModelState& model, plan::CompileInput& input) {
  const std::vector<std::size_t> trainers = plan::trainers(input.programs, plan::trainable_units(input.units));
  for (std::size_t u = 0; u < trainers.size(); ++u) {
    note_whole_tensors(input.units[u], whole_tensors_of(model, *model.units[u], trainers[u]),
                       model.world().device().kind());
  }
}

// A field that FullyShardOptions gets does not compile before this has a place for it, or none.
plan::CompileInput compile_input(const ModelState& model) {
  const auto& [strategy, sharding, replicas, mesh, outer, precision, micro_batches, granules, accumulation, seed,
               loss_scaling, prefetch, reshard_after_forward, overlap_reduction, bucket_cap, offload, disk, program,
               activations, checkpoints, memory_limit, diagnostics, cuda_stream] = model.options;
  const bool is_cpu = model.world().device().kind() == DeviceKind::cpu;
  plan::CompileInput input;
  for (const auto& unit : model.units) input.units.push_back(unit->spec());
  input.programs = plan_programs(model);
  input.options = {.strategy = strategy,
                   .sharding = sharding,
                   .precision = precision,
                   .ranks = static_cast<std::size_t>(model.world().size()),
                   .replicas = replicas,
                   .mesh = mesh,
                   .role = model.role,
                   .outer_every = outer.every,
                   .outer_fragments = outer.fragments,
                   .micro_batches = micro_batches,
                   .granules = granules,
                   .accumulation = accumulation,
                   .prefetch = prefetch,
                   .reshard_after_forward = reshard_after_forward,
                   .overlap_reduction = overlap_reduction,
                   .bucket_cap = bucket_cap,
                   .gradient_hooks = static_cast<bool>(model.hook),
                   .fp32_sums = !every_optimizer_widens(model),
                   .offload = offload,
                   .activations = activations,
                   .checkpointing = checkpointing(model),
                   .collective_staging = model.world().staging(),
                   .threaded_compute = is_cpu && parallel::threads() > 1,
                   .disk_staging = !is_cpu};
  input.optimizer_states = model.optimizers.front()->state_specs();
  ask_for_whole_tensors(model, input);
  return input;
}

std::vector<std::string> settings_of(ModelState& model, const plan::CompileInput& input, std::uint64_t plan_hash) {
  return lines_of({.input = input,
                   .plan_hash = plan_hash,
                   .seed = model.options.seed,
                   .loss_scaling = model.loss_scaling,
                   .outer = outer_settings(model),
                   .optimizers = model.optimizers,
                   .units = model.units});
}

void check_against(const ModelState& model, const plan::CompileInput& input, const plan::Plan& plan) {
  check_optimizers_of_units(model, plan);
  check_groups(model, plan);
  if (model.options.memory_limit) require_fit(plan, input, *model.options.memory_limit);
}

// Compiled, verified, the same on every rank, and within the memory limit.
plan::Plan sound_plan(ModelState& model, std::string_view call) {
  const plan::CompileInput input = compile_input(model);
  plan::Plan plan = plan::compile(input);
  const plan::Verification verification = plan::verify(plan);
  if (!verification.ok()) throw InternalError("the plan is not sound: " + verification.violations.front().text);
  model.loss_scaling = resolved(model.options.loss_scaling, plan);
  require_agreement(model.world(), settings_of(model, input, plan::hash(plan)), call);
  check_against(model, input, plan);
  return plan;
}

void make_executor(ModelState& model) {
  model.executor_or_null = std::make_unique<Executor>(ExecutorInput{.world = model.world(),
                                                                    .plan = model.plan,
                                                                    .units = model.units,
                                                                    .modules = model.modules,
                                                                    .optimizers = model.optimizers,
                                                                    .seed = model.options.seed,
                                                                    .diagnostics = model.options.diagnostics,
                                                                    .cuda_stream = model.options.cuda_stream,
                                                                    .disk = model.options.disk,
                                                                    .loss_scaling = model.loss_scaling,
                                                                    .outer = outer_settings(model),
                                                                    .gradient_hook = model.hook,
                                                                    .roles = model.roles});
}

// Everything of a model but its plan, which other roles' may be proved with.
void declare(ModelState& model, std::unique_ptr<Optimizer> optimizer) {
  model.world();
  model.require_values();
  if (model.executor_or_null || model.role) throw UsageError("finalize() was called twice");
  check_outer_settings(model);
  model.optimizer = std::move(optimizer);
  choose_optimizers(model);
  record_programs(model);
}

void check_role(const ModelState& model, const std::string& name) {
  if (model.options.outer.every == 0) return;
  throw UsageError(fmt::format("role {} has outer steps, which are not possible where ranks have roles", name));
}

// A role's model of this rank's, with its name.
struct RoleModel {
  std::string name;
  ModelState* model;
};

// Counts any role's, in any of its programs.
std::size_t most_trained_units(std::span<const plan::CompileInput> inputs) {
  std::size_t most = 1;
  for (const plan::CompileInput& input : inputs) {
    const std::vector<std::size_t> trainers = plan::trainers(input.programs, plan::trainable_units(input.units));
    for (std::size_t program = 0; program < input.programs.size(); ++program) {
      most = std::max(most, static_cast<std::size_t>(std::count(trainers.begin(), trainers.end(), program)));
    }
  }
  return most;
}

// Returns in which way two tied units are not alike, or null: then their updates would part.
const char* difference(const plan::UnitSpec& one, const plan::UnitSpec& other) {
  const bool same_parameters = std::ranges::equal(one.parameters, other.parameters, [](const auto& a, const auto& b) {
    return a.name == b.name && a.shape == b.shape && a.frozen == b.frozen && a.slice == b.slice;
  });
  if (!same_parameters) return "names, shapes, frozen ones or slices of parameters";
  if (!one.buffers.empty() || !other.buffers.empty()) return "buffers, of which such units have none";
  if (one.precision != other.precision) return "UnitOptions::precision";
  if (one.optimizer_states != other.optimizer_states) return "UnitOptions::optimizer";
  return nullptr;
}

// A unit that nobody's gradient reaches would be trained by half of it, and count in no norm.
void tie_units(std::span<plan::CompileInput> inputs) {
  for (plan::CompileInput& input : inputs) {
    for (const plan::UnitSpec& unit : input.units) {
      if (!unit.tied) continue;
      std::vector<plan::UnitSpec>& others = inputs.front().units;
      const auto found = std::ranges::find_if(
          others, [&](const plan::UnitSpec& other) { return other.name == unit.name && !other.tied; });
      if (&input != &inputs.back() || inputs.size() == 1 || found == others.end()) {
        throw UsageError(fmt::format(
            "unit {} is tied: a unit of the last stage may be, to one of the first with its name", unit.name));
      }
      if (const char* what = difference(*found, unit)) {
        throw UsageError(
            fmt::format("unit {} is tied to that of the first stage, and differs from it in {}", unit.name, what));
      }
      found->is_tied_to = true;
    }
  }
}

// Files of all roles together have each name once.
void require_different_names(std::span<const plan::CompileInput> inputs, std::span<const RoleModel> roles) {
  std::map<std::string, std::size_t> role_of_unit;
  for (std::size_t role = 0; role < inputs.size(); ++role) {
    for (const plan::UnitSpec& unit : inputs[role].units) {
      if (unit.tied || (unit.parameters.empty() && unit.buffers.empty())) continue;
      const auto [found, is_new] = role_of_unit.emplace(unit.name, role);
      if (is_new) continue;
      throw UsageError(fmt::format(
          "roles {} and {} have a unit {} each: in files names are those of all roles, so give each its own, or tie "
          "them (UnitOptions::tied)",
          roles[found->second].name, roles[role].name, unit.name));
    }
  }
}

std::size_t role_of(ModelState& model, std::size_t roles) {
  World& world = model.world();
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::optional<plan::MeshShape>& mesh = model.options.mesh;
  if (!mesh || mesh->size(Axis::pipeline) != roles || mesh->size() != ranks) {
    throw UsageError(
        fmt::format("{} roles of {} ranks need FullyShardOptions::mesh with {} places along pipeline "
                    "and as many ranks, and it is {}",
                    roles, ranks, roles, mesh ? mesh->text() : "not set"));
  }
  return mesh->place_of(static_cast<std::size_t>(world.rank()))[static_cast<std::size_t>(Axis::pipeline)];
}

}  // namespace

ShardedModel::ShardedModel(World& world, FullyShardOptions options)
    : state_(std::make_unique<ModelState>(world, std::move(options))) {}
ShardedModel::~ShardedModel() = default;

Unit& ShardedModel::add_unit(UnitOptions options, std::span<const NamedParameter> parameters,
                             std::span<const NamedBuffer> buffers, std::span<const NamedCollective> collectives) {
  auto& units = state_->units;
  if (options.name.empty()) options.name = fmt::format("units.{}", units.size());
  if (state_->executor_or_null) throw UsageError(fmt::format("unit {}: added after finalize()", options.name));
  for (const NamedParameter& named : parameters) require_in_no_other_model(*state_, options.name, named);
  for (const NamedBuffer& named : buffers) require_in_no_other_model(*state_, options.name, named);
  for (const NamedCollective& named : collectives) require_in_no_other_model(*state_, options.name, named);
  units.push_back(std::make_unique<Unit>(std::move(options), units.size(), parameters, buffers, collectives));
  return *units.back();
}
Unit& ShardedModel::add_unit(std::string_view name, std::span<const NamedParameter> parameters) {
  return add_unit(UnitOptions{.name = std::string(name)}, parameters);
}

Unit& ShardedModel::add(Module& module, UnitOptions options) {
  if (const auto added = state_->modules.find(&module); added != state_->modules.end()) {
    throw UsageError(fmt::format("unit {}: this module was already added as {}", options.name, added->second->name()));
  }
  Collector collector(state_->modules);
  module.visit(collector);
  Unit& unit = add_unit(std::move(options), collector.parameters, collector.buffers, collector.collectives);
  state_->modules[&module] = &unit;
  return unit;
}
Unit& ShardedModel::add(Module& module, std::string_view name) {
  return add(module, UnitOptions{.name = std::string(name)});
}

TrainingProgram& ShardedModel::add_program(ProgramOptions options) {
  if (options.name.empty()) options.name = "train";
  if (state_->executor_or_null) {
    throw UsageError(fmt::format("program \"{}\": added after finalize()", options.name));
  }
  for (const auto* windows : {&options.windows, &options.evaluation}) {
    for (const UnitWindow& window : *windows) require_mine(*state_, options.name, window.unit);
  }
  for (const Unit* unit : options.trains.value_or(std::vector<const Unit*>{})) {
    require_mine(*state_, options.name, unit);
  }
  if ((options.pass && !options.windows.empty()) || (options.evaluation_pass && !options.evaluation.empty())) {
    throw UsageError(
        fmt::format("program \"{}\" lists windows and has a pass that opens them: give one", options.name));
  }
  auto& programs = state_->programs;
  programs.push_back(std::make_unique<DeclaredProgram>(
      DeclaredProgram{TrainingProgram(options.name, programs.size()), std::move(options)}));
  return programs.back()->handle;
}

void ShardedModel::on_reduced_gradient(GradientHook hook) {
  if (state_->executor_or_null) throw UsageError("on_reduced_gradient() came after finalize()");
  state_->hook = std::move(hook);
}

void ShardedModel::finalize(std::unique_ptr<Optimizer> optimizer) {
  declare(*state_, std::move(optimizer));
  state_->plan = sound_plan(*state_, "finalize()");
  make_executor(*state_);
}

namespace {

// The plans of models that know their roles.
std::vector<plan::RankRole> compile_roles(std::span<const RoleModel> given) {
  std::vector<plan::CompileInput> inputs;
  for (const RoleModel& each : given) inputs.push_back(compile_input(*each.model));
  tie_units(inputs);
  require_different_names(inputs, given);
  const std::size_t units = most_trained_units(inputs);
  std::vector<plan::RankRole> roles;
  for (std::size_t role = 0; role < given.size(); ++role) {
    ModelState& model = *given[role].model;
    inputs[role].options.role_units = units;
    roles.push_back({given[role].name, plan::compile(inputs[role])});
    model.loss_scaling = resolved(model.options.loss_scaling, roles.back().plan);
    check_role(model, given[role].name);
    check_against(model, inputs[role], roles.back().plan);
  }
  return roles;
}

// Proved, and the same on every rank.
std::vector<plan::RankRole> sound_roles(std::span<const RoleModel> given, std::string_view call) {
  std::vector<plan::RankRole> roles = compile_roles(given);
  World& world = given.front().model->world();
  if (world.backend_name() == "modelled") throw UsageError(fmt::format("{}: a simulated rank has no neighbours", call));
  const plan::Verification verification = plan::verify(roles);
  if (!verification.ok()) throw UsageError("the roles do not fit together: " + verification.violations.front().text);
  std::vector<std::string> lines;
  for (const RoleModel& each : given) {
    lines.push_back("role " + each.name);
    std::ranges::move(settings_of(*each.model, compile_input(*each.model), plan::hash(roles)),
                      std::back_inserter(lines));
  }
  require_agreement(world, lines, call);
  return roles;
}

// `state_of`: of a ShardedModel.
template <typename StateOf>
std::vector<RoleModel> declared_roles(std::span<ModelRole> given, const StateOf& state_of) {
  if (given.empty()) throw UsageError("roles: there is none");
  std::vector<RoleModel> result;
  for (ModelRole& each : given) {
    ModelState& model = state_of(*each.model);
    role_of(model, given.size());
    declare(model, std::move(each.optimizer));
    model.role = result.size();
    result.push_back({each.name, &model});
  }
  return result;
}

}  // namespace

std::vector<plan::RankRole> plan_roles(std::span<ModelRole> given) {
  return compile_roles(declared_roles(given, [](const ShardedModel& model) -> ModelState& { return model.state(); }));
}

std::size_t finalize_roles(std::span<ModelRole> given) {
  const std::vector<RoleModel> all =
      declared_roles(given, [](const ShardedModel& model) -> ModelState& { return model.state(); });
  const std::size_t mine = role_of(*all.front().model, all.size());
  ModelState& model = *all[mine].model;
  model.roles = sound_roles(all, "finalize_roles()");
  model.plan = model.roles[mine].plan;
  for (const RoleModel& each : all) model.models_of_roles.push_back(each.model);
  make_executor(model);
  return mine;
}

void ShardedModel::recompile() {
  ModelState& model = *state_;
  Executor& old = model.executor_between_steps("recompile()");
  for (const std::weak_ptr<const std::string>& holder : model.held) {
    if (const auto why = holder.lock()) throw UsageError("recompile() was called while " + *why);
  }
  std::vector<RoleModel> all;
  for (std::size_t role = 0; role < model.roles.size(); ++role) {
    all.push_back({model.roles[role].name, model.models_of_roles[role]});
  }
  std::vector<plan::RankRole> next = all.empty() ? std::vector<plan::RankRole>{{"", sound_plan(model, "recompile()")}}
                                                 : sound_roles(all, "recompile()");
  const std::size_t mine = model.role.value_or(0);
  if (all.empty()) all.push_back({"", &model});
  require_met(model, next[mine].plan);
  model.carried.resize(all.size());
  const auto carry = [&](const auto& call) {
    for (std::size_t role = 0; role < all.size(); ++role) call(model.carried[role], role, all[role].model->units);
  };
  carry([&](CarriedState& carried, std::size_t role, const auto& units) {
    carried.take(role == mine ? model.plan : model.roles[role].plan, units, role == mine ? &old : nullptr);
  });
  const std::size_t program = old.program();
  const std::optional<float> expected = old.operations().expected();
  model.values_are_gone = true;
  model.executor_or_null.reset();
  model.copies.clear();
  model.plan = next[mine].plan;
  if (model.role) model.roles = next;
  make_executor(model);
  model.executor_or_null->begin(program);
  model.executor_or_null->operations().expect(expected);
  carry([&](CarriedState& carried, std::size_t role, const auto& units) {
    carried.restore(model.world(), next[role].plan, units, role == mine ? model.executor_or_null.get() : nullptr);
  });
  model.values_are_gone = false;
}

std::vector<const Parameter*> ShardedModel::waiting() const {
  std::vector<const Parameter*> result;
  for (const CarriedState& carried : state_->carried) {
    carried.for_each_waiting([&](const Parameter& parameter) { result.push_back(&parameter); });
  }
  return result;
}

void ShardedModel::drop_waiting() { state_->carried.clear(); }

void AdaptedModel::recompile(plan::Program program) {
  if (!state().programs.empty()) {
    throw UsageError("recompile(program): the model's programs were declared by add_program()");
  }
  std::optional<plan::Program> before = std::exchange(state().options.program, std::move(program));
  try {
    recompile();
  } catch (...) {
    state().options.program = std::move(before);
    throw;
  }
}

bool AdaptedModel::is_between_steps() const { return state().executor().is_between_steps(); }

void AdaptedModel::without_gradient_hook(const std::function<void()>& body) {
  GradientHook& hook = state().hook;
  const std::shared_ptr<void> ends(nullptr, [&, kept = hook](void*) { hook = kept; });
  if (hook) hook = [](const ReducedGradient&) {};
  body();
}

const plan::Plan& ShardedModel::plan() const {
  state_->executor();
  return state_->plan;
}
std::vector<const plan::Plan*> ShardedModel::plans() const {
  std::vector<const plan::Plan*> result;
  for (const plan::RankRole& role : state_->roles) result.push_back(&role.plan);
  if (result.empty()) result.push_back(&plan());
  return result;
}
const FullyShardOptions& ShardedModel::options() const { return state_->options; }
World& ShardedModel::world() { return state_->world(); }
std::size_t ShardedModel::unit_count() const { return state_->units.size(); }
Unit& ShardedModel::unit(std::size_t index) { return *state_->units.at(index); }
const Unit& ShardedModel::unit(std::size_t index) const { return *state_->units.at(index); }

}  // namespace tessera
