// From units to a running plan.
#include "tessera/shard/fully_shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "shard/agreement.hpp"
#include "shard/carried_state.hpp"
#include "shard/executor.hpp"
#include "shard/inspection.hpp"
#include "shard/loss_scaling.hpp"
#include "shard/plan_advice.hpp"
#include "shard/recorded_pass.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/compile.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera {

using plan::WindowKind;

namespace {

// Walks a module's parts and writes down what they have under its joined names. Parts that are units of their own are
// left out.
class Collector : public ModuleVisitor {
 public:
  explicit Collector(const std::map<const Module*, Unit*>& units) : units_(units) {}

  void operator()(std::string_view name, Parameter& parameter) override {
    parameters_.push_back({prefix_ + std::string(name), &parameter});
  }
  void operator()(std::string_view name, Buffer& buffer) override {
    buffers_.push_back({prefix_ + std::string(name), &buffer});
  }
  void operator()(std::string_view name, Exchange& exchange) override {
    exchanges_.push_back({prefix_ + std::string(name), &exchange});
  }
  void operator()(std::string_view name, Module& part) override {
    if (units_.contains(&part)) return;
    const std::size_t length = prefix_.size();
    prefix_ += std::string(name) + ".";
    part.visit(*this);
    prefix_.resize(length);
  }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  const std::vector<NamedBuffer>& buffers() const { return buffers_; }
  const std::vector<NamedExchange>& exchanges() const { return exchanges_; }

 private:
  const std::map<const Module*, Unit*>& units_;
  std::string prefix_;
  std::vector<NamedParameter> parameters_;
  std::vector<NamedBuffer> buffers_;
  std::vector<NamedExchange> exchanges_;
};

}  // namespace

class FullyShard::Implementation {
 public:
  Implementation(World& world, FullyShardOptions options)
      : world_(&world), options_(std::move(options)), ends_with_world_(world.before_end([this] { world_ended(); })) {}

  Unit& add(UnitOptions options, std::span<const NamedParameter> parameters, std::span<const NamedBuffer> buffers,
            std::span<const NamedExchange> exchanges) {
    if (options.name.empty()) options.name = fmt::format("units.{}", units_.size());
    if (executor_) throw UsageError(fmt::format("unit {}: added after finalize()", options.name));
    for (const NamedParameter& named : parameters)
      require_in_no_other_model(options.name, named.name, *named.parameter);
    for (const NamedBuffer& named : buffers) require_in_no_other_model(options.name, named.name, *named.buffer);
    for (const NamedExchange& named : exchanges) require_in_no_other_model(options.name, named.name, *named.exchange);
    units_.push_back(std::make_unique<Unit>(std::move(options), units_.size(), parameters, buffers, exchanges));
    return *units_.back();
  }

  Unit& add(Module& module, UnitOptions options) {
    if (unit_of_.contains(&module)) {
      throw UsageError(
          fmt::format("unit {}: this module was already added as {}", options.name, unit_of_.at(&module)->name()));
    }
    Collector collector(unit_of_);
    module.visit(collector);
    Unit& unit = add(std::move(options), collector.parameters(), collector.buffers(), collector.exchanges());
    unit_of_[&module] = &unit;
    return unit;
  }

  TrainingProgram& add_program(ProgramOptions options) {
    if (options.name.empty()) options.name = "train";
    if (executor_) throw UsageError(fmt::format("program \"{}\": added after finalize()", options.name));
    for (const auto* windows : {&options.windows, &options.evaluation}) {
      for (const UnitWindow& window : *windows) require_mine(options.name, window.unit);
    }
    for (const Unit* unit : options.trains.value_or(std::vector<const Unit*>{})) require_mine(options.name, unit);
    if ((options.pass && !options.windows.empty()) || (options.evaluation_pass && !options.evaluation.empty())) {
      throw UsageError(
          fmt::format("program \"{}\" lists windows and has a pass that opens them: give one", options.name));
    }
    programs_.push_back(std::make_unique<DeclaredProgram>(
        DeclaredProgram{TrainingProgram(options.name, programs_.size()), std::move(options)}));
    return programs_.back()->handle;
  }

  void begin(const TrainingProgram& program) {
    Executor& executor = this->executor();
    if (program.index() < programs_.size() && &programs_[program.index()]->handle == &program) {
      return executor.begin(program.index());
    }
    throw UsageError(fmt::format("program \"{}\" belongs to another model", program.name()));
  }

  void finalize(std::unique_ptr<Optimizer> optimizer) {
    world();
    require_values();
    if (executor_) throw UsageError("finalize() was called twice");
    check_outer_settings();
    optimizer_ = std::move(optimizer);
    choose_optimizers();
    record_programs();
    plan_ = sound_plan("finalize()");
    make_executor();
  }

  void recompile() {
    executor().require_between_steps("recompile()");
    for (const std::weak_ptr<const std::string>& holder : held_) {
      if (const auto why = holder.lock()) throw UsageError("recompile() was called while " + *why);
    }
    plan::Plan next = sound_plan("recompile()");
    const CarriedState carried(world(), plan_, units_, *executor_);
    const std::size_t program = executor_->program();
    values_are_gone_ = true;
    executor_.reset();
    gradient_copies_.clear();
    plan_ = std::move(next);
    make_executor();
    executor_->begin(program);
    carried.restore(plan_, units_, *executor_);
    values_are_gone_ = false;
  }

  std::shared_ptr<const std::string> hold_plan(std::string why) {
    auto held = std::make_shared<const std::string>(std::move(why));
    std::erase_if(held_, [](const auto& holder) { return holder.expired(); });
    held_.push_back(held);
    return held;
  }

  void set_hook(GradientHook hook) {
    if (executor_) throw UsageError("on_reduced_gradient() came after finalize()");
    hook_ = std::move(hook);
  }

  Unit& unit_of(const Buffer& buffer) { return owner(buffer, "buffer"); }
  Unit& unit_of(const Parameter& parameter) { return owner(parameter, "parameter"); }

  // While a pass is recorded; null else.
  RecordedPass* recording() { return recording_ ? &*recording_ : nullptr; }

  Executor& executor() {
    world();
    if (recording_) {
      throw UsageError(
          "a pass that is recorded opens windows and nothing else: update() and whatever looks at the model "
          "stand outside it");
    }
    require_values();
    if (!executor_) throw UsageError("the model is not finalized: call finalize() with an optimizer first");
    return *executor_;
  }

  // Whose windows open now.
  WindowHost& windows() {
    if (recording_) return *recording_;
    return executor();
  }

  void skip(const plan::WindowUse& use) { recording_ ? recording_->open(use).close() : executor().skip(use); }

  Unit& unit_of(const Module& module) {
    const auto found = unit_of_.find(&module);
    if (found == unit_of_.end()) throw UsageError("this module was not added to the model (or moved since)");
    return *found->second;
  }

  void skip_step(std::optional<float> asked) {
    Executor& executor = this->executor();
    require_no_outer_steps("skip_step()");
    executor.skip_step(learning_rate(asked, "skip_step"));
  }

  void discard_gradients() {
    Executor& executor = this->executor();
    require_no_outer_steps("discard_gradients()");
    executor.discard_gradients();
  }

  float learning_rate(std::optional<float> asked, std::string_view call) const {
    const float rate = asked.value_or(optimizers_[executor_->program()]->learning_rate());
    if (std::isfinite(rate) && rate >= 0.0f) return rate;
    throw UsageError(fmt::format("{}({}): a learning rate is finite and at least 0", call, rate));
  }

  std::optional<double> weight(std::optional<double> asked) const {
    if (!asked) return asked;
    require_no_outer_steps("a weight in update()");
    if (std::isfinite(*asked) && *asked >= 0.0) return asked;
    throw UsageError(fmt::format("update() with weight {}: a weight is finite and at least 0", *asked));
  }

  std::size_t program_or_current(std::optional<std::size_t> program) {
    const std::size_t index = program.value_or(executor().program());
    if (index < plan_.programs.size()) return index;
    throw UsageError(fmt::format("the step scalars of program {} were asked for, and the model has {}, counted from 0",
                                 index, plan_.programs.size()));
  }

  bool is_mine(const Unit& unit) const { return unit.index() < units_.size() && units_[unit.index()].get() == &unit; }
  void require_mine(const Unit& unit) const {
    if (is_mine(unit)) return;
    throw UsageError(fmt::format("unit {} belongs to another model", unit.name()));
  }

  std::size_t state_buffer(const Unit& unit, std::string_view state) const {
    require_mine(unit);
    const plan::UnitBuffers& buffers = plan_.unit_buffers[unit.index()];
    if (state == "master") return buffers.master;
    if (!plan_.trains(unit.index())) {
      throw UsageError(fmt::format("unit {}: nothing of it is trained, so there is no \"{}\"", unit.name(), state));
    }
    if (state == "gradient") return buffers.gradient;
    if (state == "anchor" && buffers.anchor != plan::no_buffer) return buffers.anchor;
    if (state == "outer momentum" && buffers.anchor != plan::no_buffer) return buffers.outer_momentum;
    const std::vector<std::string>& states = plan_.unit_states(unit.index());
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (state == states[i]) return buffers.states[i];
    }
    std::string known = "master, gradient";
    for (const std::string& name : states) known.append(", ").append(name);
    if (plan_.replicas_diverge()) known += ", anchor, outer momentum";
    throw UsageError(fmt::format("unit {}: no state \"{}\"; there are {}", unit.name(), state, known));
  }

  // What the pieces of a gradient in 16 bits are of, for whoever looks at them.
  std::vector<float>& gradient_copy(const Unit& unit) {
    gradient_copies_.resize(units_.size());
    return gradient_copies_[unit.index()];
  }

  void require_mine(const std::string& program, const Unit* unit) const {
    if (unit == nullptr) throw UsageError(fmt::format("program \"{}\" names a unit that is null", program));
    if (is_mine(*unit)) return;
    throw UsageError(
        fmt::format("program \"{}\" names unit {}, which belongs to another model", program, unit->name()));
  }

  World& world() const {
    if (world_ != nullptr) return *world_;
    throw UsageError(
        "a FullyShard was used after its World had ended: it lives no longer than the function that run() or launch() "
        "called");
  }
  const FullyShardOptions& options() const { return options_; }
  const plan::Plan& plan() const { return plan_; }
  std::string types_table() const { return tessera::types_table(plan_); }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }

 private:
  // Anew they would be the initial ones.
  void require_values() const {
    if (!values_are_gone_) return;
    throw UsageError(
        "recompile() failed half way, and the model's values went with its old plan: make the model anew, and load a "
        "checkpoint");
  }

  void require_no_outer_steps(std::string_view what) const {
    if (!plan_.replicas_diverge()) return;
    throw UsageError(
        fmt::format("{} does not go with outer steps: replicas that train by themselves have no mean over samples in "
                    "common, and must not lose count of each other's steps",
                    what));
  }

  template <typename Tensor>
  void require_in_no_other_model(const std::string& unit, const std::string& name, const Tensor& tensor) const {
    if (tensor.unit() == nullptr || is_mine(*tensor.unit())) return;
    throw UsageError(fmt::format(
        "unit {}: \"{}\" is in another FullyShard, as {}: a module trains in one at a time; destroy that one "
        "first",
        unit, name, tensor.name()));
  }

  plan::CompileInput compile_input() const {
    plan::CompileInput input;
    for (const auto& unit : units_) input.units.push_back(unit->spec());
    input.programs = plan_programs();
    input.options = {.strategy = options_.strategy,
                     .sharding = options_.sharding,
                     .precision = options_.precision,
                     .ranks = static_cast<std::size_t>(world().size()),
                     .replicas = options_.replicas,
                     .outer_every = options_.outer.every,
                     .outer_fragments = options_.outer.fragments,
                     .micro_batches = options_.micro_batches,
                     .accumulation = options_.accumulation,
                     .prefetch = options_.prefetch,
                     .reshard_after_forward = options_.reshard_after_forward,
                     .overlap_reduction = options_.overlap_reduction,
                     .bucket_cap = options_.bucket_cap,
                     .gradient_hooks = static_cast<bool>(hook_),
                     .fp32_sums = !every_optimizer_widens(),
                     .activations = options_.activations,
                     .checkpointing = checkpointing(),
                     .collective_staging = world().staging()};
    input.optimizer_states = optimizers_.front()->states();
    return input;
  }

  std::vector<plan::Program> plan_programs() const {
    if (programs_.empty()) return {options_.program.value_or(plan::Program::chain(units_.size()))};
    if (options_.program) {
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
    for (const auto& declared : programs_) {
      const ProgramOptions& options = declared->options;
      plan::Program program{.micro_batch = uses(options.windows),
                            .evaluation = uses(options.evaluation),
                            .name = options.name,
                            .trains = std::nullopt,
                            .optimizer_states = optimizers_[result.size()]->states(),
                            .micro_batches = options.micro_batches};
      if (options.trains) {
        program.trains.emplace();
        for (const Unit* unit : *options.trains) program.trains->push_back(unit->index());
      }
      result.push_back(std::move(program));
    }
    return result;
  }

  void record_programs() {
    for (const auto& declared : programs_) {
      ProgramOptions& options = declared->options;
      if (!options.pass && !options.evaluation_pass) continue;
      recording_.emplace(RecordedPass::Subject{.world = world(),
                                               .units = units_,
                                               .modules = unit_of_,
                                               .precision = options_.precision,
                                               .activations = options_.activations,
                                               .program = options.name,
                                               .trains = options.trains});
      const std::shared_ptr<void> ends(nullptr, [this](void*) { recording_.reset(); });
      if (options.pass) options.windows = recorded(options.pass);
      if (options.evaluation_pass) options.evaluation = recorded(options.evaluation_pass);
    }
  }

  std::vector<UnitWindow> recorded(std::function<void()>& pass) {
    std::vector<UnitWindow> windows;
    for (const plan::WindowUse& use : recording_->run(pass)) {
      windows.push_back({units_[use.unit].get(), use.kind, use.resumes});
    }
    pass = nullptr;  // what it refers to may end now
    return windows;
  }

  void choose_optimizers() {
    optimizers_.clear();  // of a finalize() that failed
    for (const auto& declared : programs_) {
      const Optimizer* const own = declared->options.optimizer.get();
      if (own == nullptr && optimizer_ == nullptr) {
        throw UsageError(
            fmt::format("program \"{}\" has no optimizer: give it one, or finalize()", declared->handle.name()));
      }
      optimizers_.push_back(own != nullptr ? own : optimizer_.get());
    }
    if (!programs_.empty()) return;
    if (optimizer_ == nullptr) throw UsageError("finalize() needs an optimizer");
    optimizers_.push_back(optimizer_.get());
  }

  bool every_optimizer_widens() const {
    const auto own_widens = [](const std::unique_ptr<Unit>& unit) {
      return unit->options().optimizer == nullptr || unit->options().optimizer->widens();
    };
    return std::all_of(optimizers_.begin(), optimizers_.end(), [](const Optimizer* each) { return each->widens(); }) &&
           std::all_of(units_.begin(), units_.end(), own_widens);
  }

  void check_optimizers_of_units(const plan::Plan& plan) const {
    for (const auto& unit : units_) {
      const Optimizer* const own = unit->options().optimizer.get();
      if (own == nullptr || !plan.trains(unit->index())) continue;
      const Optimizer& program = *optimizers_[plan.trainers[unit->index()]];
      const float clip_norm = own->step_settings().clip_norm;
      if (clip_norm != 0.0f && clip_norm != program.step_settings().clip_norm) {
        throw UsageError(
            fmt::format("unit {}: its optimizer's clip_norm is {}, but gradients are clipped by the norm of all units "
                        "that a step trains: set it in the optimizer of the program alone",
                        unit->name(), clip_norm));
      }
      if (program.learning_rate() > 0.0f) continue;
      throw UsageError(fmt::format(
          "unit {} has an optimizer of its own, whose learning rate follows the step's in proportion to the "
          "rate of the program's optimizer, and that is 0: give it the one that most steps have",
          unit->name()));
    }
  }

  // Files are written from and read into the host's memory: on another device that takes a copy in any case.
  Checkpointing checkpointing() const {
    if (options_.checkpointing == Checkpointing::none) return Checkpointing::none;
    return world().device().kind() == DeviceKind::cpu ? options_.checkpointing : Checkpointing::background;
  }

  kernels::OuterSettings outer() const { return {options_.outer.learning_rate, options_.outer.momentum}; }

  void check_outer_settings() const {
    const auto [learning_rate, momentum] = outer();
    if (!(std::isfinite(learning_rate) && learning_rate > 0.0f)) {
      throw UsageError(fmt::format("outer.learning_rate is {}: choose a finite one above 0", learning_rate));
    }
    if (momentum >= 0.0f && momentum < 1.0f) return;
    throw UsageError(fmt::format("outer.momentum is {}: choose one in [0, 1)", momentum));
  }

  // Compiled, verified, the same on every rank, and within the memory limit.
  plan::Plan sound_plan(std::string_view call) {
    const plan::CompileInput input = compile_input();
    plan::Plan plan = plan::compile(input);
    const plan::Verification verification = plan::verify(plan);
    if (!verification.ok()) throw InternalError("the plan is not sound: " + verification.violations.front().text);
    loss_scaling_ = resolved(options_.loss_scaling, plan);
    require_agreement(world(),
                      lines_of({.input = input,
                                .plan_hash = plan::hash(plan),
                                .seed = options_.seed,
                                .loss_scaling = loss_scaling_,
                                .outer = outer(),
                                .optimizers = optimizers_,
                                .units = units_}),
                      call);
    check_optimizers_of_units(plan);
    if (options_.memory_limit) require_fit(plan, input, *options_.memory_limit);
    return plan;
  }

  void make_executor() {
    executor_ = std::make_unique<Executor>(ExecutorInput{.world = world(),
                                                         .plan = plan_,
                                                         .units = units_,
                                                         .modules = unit_of_,
                                                         .optimizers = optimizers_,
                                                         .seed = options_.seed,
                                                         .diagnostics = options_.diagnostics,
                                                         .loss_scaling = loss_scaling_,
                                                         .outer = outer(),
                                                         .gradient_hook = hook_});
  }

  template <typename Tensor>
  Unit& owner(const Tensor& tensor, const char* what) {
    if (tensor.unit() != nullptr && is_mine(*tensor.unit())) return *units_[tensor.unit()->index()];
    throw UsageError(fmt::format("a {} of shape {} was asked for that does not belong to this model", what,
                                 to_string(tensor.shape())));
  }

  void world_ended() {
    executor_.reset();
    world_ = nullptr;
  }

  World* world_;  // null once it has ended
  FullyShardOptions options_;
  GradientHook hook_;
  kernels::LossScaling loss_scaling_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::map<const Module*, Unit*> unit_of_;
  struct DeclaredProgram {
    TrainingProgram handle;
    ProgramOptions options;
  };
  std::vector<std::unique_ptr<DeclaredProgram>> programs_;  // none: the one of the options
  std::unique_ptr<Optimizer> optimizer_;                    // of programs that bring none
  std::vector<const Optimizer*> optimizers_;                // by program
  std::optional<RecordedPass> recording_;                   // while finalize() records a pass
  std::vector<std::weak_ptr<const std::string>> held_;
  plan::Plan plan_;
  bool values_are_gone_ = false;                     // from one plan to the next, and where that has failed
  std::unique_ptr<Executor> executor_;               // it uses all of the above
  std::vector<std::vector<float>> gradient_copies_;  // by unit
  std::shared_ptr<const void> ends_with_world_;
};

FullyShard::FullyShard(World& world, FullyShardOptions options)
    : implementation_(std::make_unique<Implementation>(world, std::move(options))) {}
FullyShard::~FullyShard() = default;

Unit& FullyShard::add(Module& module, std::string_view name) {
  return implementation_->add(module, UnitOptions{.name = std::string(name)});
}
Unit& FullyShard::add(Module& module, UnitOptions options) { return implementation_->add(module, std::move(options)); }
Unit& FullyShard::add_unit(UnitOptions options, std::span<const NamedParameter> parameters,
                           std::span<const NamedBuffer> buffers, std::span<const NamedExchange> exchanges) {
  return implementation_->add(std::move(options), parameters, buffers, exchanges);
}
Unit& FullyShard::add_unit(std::string_view name, std::span<const NamedParameter> parameters) {
  return implementation_->add(UnitOptions{.name = std::string(name)}, parameters, {}, {});
}
void FullyShard::on_reduced_gradient(std::function<void(const ReducedGradient&)> hook) {
  implementation_->set_hook(std::move(hook));
}
TrainingProgram& FullyShard::add_program(ProgramOptions options) {
  return implementation_->add_program(std::move(options));
}
void FullyShard::begin(const TrainingProgram& program) { implementation_->begin(program); }
void FullyShard::finalize(std::unique_ptr<Optimizer> optimizer) { implementation_->finalize(std::move(optimizer)); }
void FullyShard::recompile() { implementation_->recompile(); }

void FullyShard::skip(Unit& unit, plan::WindowKind kind) {
  if (!unit.options().optional) {
    throw UsageError(fmt::format("unit {} cannot be skipped: add it with UnitOptions::optional", unit.name()));
  }
  implementation_->require_mine(unit);
  WindowHost& windows = implementation_->windows();
  if (kind == WindowKind::recompute) require_no_setting(unit);
  if (unit.options().recompute && kind == WindowKind::backward) {
    implementation_->skip({unit.index(), WindowKind::recompute});  // refused, the call stays
    windows.kept_calls().drop(unit.index());
  }
  implementation_->skip({unit.index(), kind});
  if (unit.options().recompute && kind == WindowKind::forward) windows.kept_calls().keep_none(unit.index());
}

Window FullyShard::open(Unit& unit, plan::WindowKind kind) {
  WindowHost& windows = implementation_->windows();
  implementation_->require_mine(unit);
  return windows.open({unit.index(), kind});
}

void FullyShard::compute_again(const Unit& unit) { implementation_->windows().compute_again(unit); }

void FullyShard::update() { update(UpdateOptions{}); }
void FullyShard::update(float learning_rate) { update(UpdateOptions{.learning_rate = learning_rate}); }
void FullyShard::update(const UpdateOptions& options) {
  implementation_->executor().update(implementation_->learning_rate(options.learning_rate, "update"),
                                     implementation_->weight(options.weight));
}
void FullyShard::skip_step() { implementation_->skip_step(std::nullopt); }
void FullyShard::skip_step(float learning_rate) { implementation_->skip_step(learning_rate); }
void FullyShard::discard_gradients() { implementation_->discard_gradients(); }
bool FullyShard::finished() { return last_step().finished; }

Stream& FullyShard::stream() {
  if (RecordedPass* const recording = implementation_->recording()) return recording->compute();
  return implementation_->executor().compute();
}
const float* FullyShard::loss_scale() const {
  if (RecordedPass* const recording = implementation_->recording()) return recording->scale();
  Executor& executor = implementation_->executor();
  return &executor.memory().scalars(executor.program())->loss_scale;
}
StepReport FullyShard::last_step() {
  const kernels::StepScalars& now = implementation_->executor().look_at_steps();
  return {.gradient_norm = now.gradient_norm,
          .skipped = now.skip != 0 && now.weight != 0.0,
          .updates = now.step,
          .skipped_updates = now.skipped_steps,
          .loss_scale = now.loss_scale,
          .weight = now.weight,
          .finished = now.idle != 0};
}
void FullyShard::synchronize() {
  if (RecordedPass* const recording = implementation_->recording()) return recording->compute().synchronize();
  implementation_->executor().synchronize();
}

const plan::Plan& FullyShard::plan() const {
  implementation_->executor();
  return implementation_->plan();
}
const FullyShardOptions& FullyShard::options() const { return implementation_->options(); }
World& FullyShard::world() { return implementation_->world(); }
std::size_t FullyShard::unit_count() const { return implementation_->units().size(); }
Unit& FullyShard::unit(std::size_t index) { return *implementation_->units().at(index); }
const Unit& FullyShard::unit(std::size_t index) const { return *implementation_->units().at(index); }

std::vector<ParameterPiece> FullyShard::pieces(const Unit& unit, std::string_view state) {
  Executor& executor = implementation_->executor();
  executor.require_between_steps("pieces()");
  const std::size_t buffer = implementation_->state_buffer(unit, state);
  return settled_pieces(executor, unit.index(), buffer, implementation_->gradient_copy(unit));
}
void FullyShard::shards_changed() { implementation_->executor().refresh(); }

std::vector<float> FullyShard::whole(const Parameter& parameter, std::string_view state) {
  Executor& executor = implementation_->executor();
  executor.require_between_steps("whole()");
  const Unit& unit = implementation_->unit_of(parameter);
  if (state != "master" && plan().units[unit.index()].parameters[unit.index_of(parameter)].frozen) {
    throw UsageError(fmt::format("{} is frozen: of it there is a master alone, no \"{}\"", parameter.name(), state));
  }
  const std::size_t buffer = implementation_->state_buffer(unit, state);
  std::vector<float> copy;
  return whole_parameter(world(), plan(), parameter_place(unit, parameter, plan().own(unit.index(), buffer)),
                         HostPieces(stream(), settled_pieces(executor, unit.index(), buffer, copy)).pieces());
}
std::vector<GradientNorm> FullyShard::gradient_norms() {
  return tessera::gradient_norms(world(), plan(), implementation_->units(), implementation_->executor());
}

std::span<float> FullyShard::buffer(const Buffer& buffer) {
  Executor& executor = implementation_->executor();
  executor.require_between_steps("buffer()");
  executor.synchronize();
  return executor.memory().values(implementation_->unit_of(buffer), buffer);
}
void FullyShard::synchronize_buffers() { implementation_->executor().synchronize_buffers(); }
std::span<std::byte> FullyShard::activation_memory() {
  if (RecordedPass* const recording = implementation_->recording()) return recording->activation_memory();
  return implementation_->executor().memory().bytes(implementation_->plan().activations);
}
FullyShard::CheckpointMemory FullyShard::checkpoint_memory() {
  Executor& executor = implementation_->executor();
  return {.staging = executor.memory().bytes(implementation_->plan().checkpoint_staging),
          .copy = executor.memory().bytes(implementation_->plan().checkpoint_copy)};
}
std::shared_ptr<const std::string> FullyShard::hold_plan(std::string why) {
  return implementation_->hold_plan(std::move(why));
}

kernels::StepScalars FullyShard::step_scalars(std::optional<std::size_t> program) {
  Executor& executor = implementation_->executor();
  executor.require_between_steps("step_scalars()");
  return tessera::step_scalars(executor, implementation_->program_or_current(program));
}
void FullyShard::set_step_scalars(const kernels::StepScalars& scalars, std::optional<std::size_t> program) {
  Executor& executor = implementation_->executor();
  executor.require_between_steps("set_step_scalars()");
  tessera::set_step_scalars(executor, implementation_->program_or_current(program), scalars);
}

void FullyShard::require_between_steps(std::string_view call) const {
  implementation_->executor().require_between_steps(call);
}

Trace FullyShard::trace(TraceSteps steps) {
  Executor& executor = implementation_->executor();
  executor.require_between_steps("trace()");
  const auto recorder =
      std::make_shared<TraceRecorder>(plan(), executor.program(), world().device(), steps, executor.updates());
  executor.trace(recorder);
  return Trace(*this, recorder);
}

std::string FullyShard::types_table() const {
  implementation_->executor();
  return implementation_->types_table();
}

std::vector<FullyShard::Region> FullyShard::regions() const { return implementation_->executor().memory().regions(); }

Unit& FullyShard::unit_of(const Module& module) { return implementation_->unit_of(module); }

void FullyShard::require_forward(const Unit& unit, plan::WindowKind kind) {
  if (kind == plan::WindowKind::recompute) require_no_setting(unit);
  if (kind != plan::WindowKind::backward) return;
  throw UsageError("pass() calls forward functions, in forward, recompute or evaluate windows: call backward()");
}

}  // namespace tessera
