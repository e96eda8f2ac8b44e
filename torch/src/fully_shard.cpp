// Passes: which window is open, and how autograd comes back to each.
#include "tessera/torch/fully_shard.hpp"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "src/autograd_node.hpp"
#include "src/compute_device.hpp"
#include "src/hidden_tensor.hpp"
#include "src/initial_values.hpp"
#include "src/module_tensors.hpp"
#include "src/module_units.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera::torch {

using plan::WindowKind;

namespace {

// Stands in the graph between what two forward windows computed. Autograd runs nodes in the reverse of the order in
// which they were made, so it comes here when it has done with the later window and before it begins with the earlier.
// It is a root of the backward pass itself, because no tensor need lead from one window to the next.
class Turn : public ::torch::autograd::Node {
 public:
  explicit Turn(std::function<void()> reached) : reached_(std::move(reached)) {}

  // On the device whose nodes it stands between: autograd has an order for each.
  static at::Tensor root(at::Device device, std::function<void()> reached) {
    at::Tensor tensor = at::zeros({}, device);
    ::torch::autograd::create_gradient_edge(tensor, make_node<Turn>(std::move(reached)));
    return tensor;
  }

  ::torch::autograd::variable_list apply(::torch::autograd::variable_list&&) override {
    reached_();
    return {};
  }

 private:
  std::function<void()> reached_;
};

bool matches(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

}  // namespace

class ShardedModule::Implementation : public TensorOwner {
 public:
  Implementation(World& world, std::shared_ptr<::torch::nn::Module> module, ModuleOptions module_options,
                 FullyShardOptions options)
      : world_(world),
        module_(std::move(module)),
        module_options_(std::move(module_options)),
        options_(std::move(options)),
        compute_(make_compute_device(world.device())),
        ends_with_world_(world.before_end([this] { let_go(); })) {
    require_own_device();
    // Torch would give each rank all of the machine's cores.
    at::set_num_threads(world.threads());
    for (UnitMembers& members : divide(*module_, module_options_.units)) take_up(members);
    prepare_values(*module_, module_options_.initial != nullptr);
  }
  ~Implementation() override { let_go(); }

  // ---- before training ----

  void learn(const std::function<void()>& forward_pass) {
    if (phase_ != Phase::not_finalized || sharded_) {
      throw UsageError("learn() came after finalize(), or after the first use of sharded()");
    }
    learnt_.clear();
    try {
      watch_uses(forward_pass);
      for (std::size_t unit = 0; unit < units_.size(); ++unit) {
        if (std::find(learnt_.begin(), learnt_.end(), unit) != learnt_.end()) continue;
        throw UsageError(fmt::format("the pass that was learnt uses no parameter of unit {}", units_[unit].name));
      }
    } catch (...) {
      learnt_.clear();
      throw;
    }
  }

  void finalize(std::unique_ptr<Optimizer> optimizer) {
    if (phase_ != Phase::not_finalized) throw UsageError("finalize() was called twice, or inside learn()");
    require_unchanged();
    for (ParameterTensor* parameter : all_parameters_) {
      parameter->parameter().set_frozen(!parameter->tensor().requires_grad());
    }
    tessera::FullyShard& model = sharded();
    model.finalize(std::move(optimizer));
    try {
      hand_over_values();
    } catch (...) {
      // Other ranks wait for this one's part, also where its caller catches this.
      abandon();
      throw;
    }
    model.shards_changed();
    held_plan_ =
        model.hold_plan("a module of libtorch trains, whose buffers stand in its memory: make a new model instead");
    phase_ = Phase::idle;
  }

  tessera::FullyShard& sharded() {
    if (!sharded_) make_sharded();
    return *sharded_;
  }

  const Parameter& parameter(std::string_view name) const {
    for (const auto& parameter : all_parameters_) {
      if (parameter->name() == name) return parameter->parameter();
    }
    throw UsageError(fmt::format("the module has no parameter \"{}\"", name));
  }

  // ---- passes ----

  void begin_pass() {
    switch (phase_) {
      case Phase::not_finalized: throw UsageError("a pass came before finalize()");
      case Phase::backward: throw UsageError("a pass began inside a backward pass");
      case Phase::failed: throw UsageError(text_of_failure());
      case Phase::learning: return;
      case Phase::forward:
      case Phase::evaluation: return begin_inner_pass();
      case Phase::idle: break;
    }
    close();
    require_unchanged();
    require_frozen_as_before();
    if (used_.empty()) compute_->begin_count();
    compute_->enter(sharded_->stream());
    phase_ = at::GradMode::is_enabled() ? Phase::forward : Phase::evaluation;
    passes_ = 1;
    windows_before_ = windows_opened_;
  }

  void end_pass() {
    leave_pass();
    if (phase_ == Phase::idle) close();
  }

  // Calls between passes end them: in one full expression, `model.backward(model->forward(x).sum())`, the pass
  // would go on to the end.
  void end_passes() {
    passes_ = std::min<std::size_t>(passes_, 1);
    end_pass();
  }

  void leave_pass() noexcept {
    if (!in_pass()) return;
    if (--passes_ == 0) leave_passes(Phase::idle);
  }

  // Ends the pass by an exception, which may be caught. A window that it left cannot be used again: the order goes on
  // behind it.
  void fail_pass() noexcept {
    if (!in_pass()) return;
    passes_ = 0;
    leave_passes(windows_opened_ == windows_before_ ? Phase::idle : Phase::failed);
  }

  void note_use(const at::Tensor& tensor) {
    if (in_pass()) compute_->note_use(tensor);
  }

  void about_to_use(std::size_t unit, const std::string& parameter, const std::string& operation) override {
    switch (phase_) {
      case Phase::learning: return learn_use(unit);
      case Phase::forward: return use_in_forward(unit);
      case Phase::evaluation: return open(unit, WindowKind::evaluate);
      case Phase::backward:
        throw UsageError(fmt::format("rank {}: {} uses parameter {} of unit {} in the backward pass of unit {}",
                                     world_.rank(), operation, parameter, units_[unit].name, units_[open_->unit].name));
      case Phase::failed: throw UsageError(text_of_failure());
      case Phase::not_finalized:
      case Phase::idle: break;
    }
    throw UsageError(
        fmt::format("rank {}: {} was to use parameter {} outside of a pass: the parameters of unit {} are whole only "
                    "while model->… computes",
                    world_.rank(), operation, parameter, units_[unit].name));
  }

  void backward(const at::Tensor& loss) {
    end_passes();
    if (phase_ == Phase::failed) throw UsageError(text_of_failure());
    if (phase_ != Phase::idle || used_.empty()) {
      throw UsageError(fmt::format("rank {}: backward() came without a forward pass before it", world_.rank()));
    }
    if (loss.numel() != 1 || !loss.requires_grad()) {
      throw UsageError("backward() takes a loss of one element that depends on a trained parameter");
    }
    phase_ = Phase::backward;
    compute_->enter(sharded_->stream());
    try {
      compute_->note_use(loss);
      open(used_.back(), WindowKind::backward);
      run_backward(loss);
      close();
    } catch (...) {
      compute_->leave();
      abandon();
      throw;
    }
    compute_->leave();
    peak_activations_ = std::max(peak_activations_, compute_->most_counted());
    used_.clear();
    phase_ = Phase::idle;
  }

  Bytes peak_activations() const { return peak_activations_; }

  void take_gradient(std::size_t unit, ParameterTensor& parameter, const at::Tensor& gradient) override {
    if (phase_ != Phase::backward || open_->unit != unit) {
      throw UsageError(fmt::format(
          "rank {}: the gradient of {} came outside of the backward window of unit {}: call model.backward(loss), not "
          "loss.backward()",
          world_.rank(), parameter.name(), units_[unit].name));
    }
    parameter.take_gradient(open_->window, open_->serial, gradient);
  }

  // Does what FullyShard::abandon() does, before the window's handle ends: it would not know the cause.
  void abandon() noexcept {
    try {
      throw;
    } catch (const AbortedError&) {
      // Another rank failed first.
    } catch (const c10::Error& error) {
      world_.abort(error.what_without_backtrace());
    } catch (const std::exception& error) {
      world_.abort(error.what());
    } catch (...) {
      world_.abort("something that is no std::exception was thrown");
    }
  }

  void require_idle(std::string_view call) {
    end_passes();
    if (phase_ == Phase::failed) throw UsageError(text_of_failure());
    if (phase_ == Phase::not_finalized) throw UsageError(fmt::format("{} came before finalize()", call));
    if (phase_ != Phase::idle) throw UsageError(fmt::format("{} came inside a pass", call));
  }

 private:
  // failed: an exception has ended a pass, and was caught.
  enum class Phase { not_finalized, learning, idle, forward, evaluation, backward, failed };

  struct ModuleUnit {
    std::string name;
    std::vector<std::unique_ptr<ParameterTensor>> parameters;
    std::vector<std::unique_ptr<BufferTensor>> buffers;
    std::vector<std::string> buffer_names;
    Unit* unit = nullptr;
  };

  struct OpenUnit {
    std::size_t unit;
    std::size_t serial;
    Window window;
  };

  // Autograd has one thread for each CUDA device of a process, on which a rank may have to wait for its peers.
  void require_own_device() const {
    if (world_.device().kind() == DeviceKind::cpu || world_.backend_name() != "local") return;
    if (world_.size() <= cuda_device_count()) return;
    throw UsageError(
        fmt::format("{} ranks share {} CUDA devices, and torch's backward pass has one thread for each: use as many "
                    "ranks as devices",
                    world_.size(), cuda_device_count()));
  }

  Parameter parameter_of(const NamedTensor& named) const {
    return Parameter(
        shape_of(named.tensor),
        module_options_.initial ? module_options_.initial(named.name, named.tensor.sizes()) : Initial::zeros(),
        {.optional = matches(module_options_.may_be_unused, named.name)});
  }

  void take_up(UnitMembers& members) {
    const std::size_t index = units_.size();
    ModuleUnit& unit = units_.emplace_back();
    unit.name = members.name;
    for (NamedTensor& named : members.parameters) {
      auto mark = std::make_shared<HiddenMark>(HiddenMark{.owner = this, .unit = index, .parameter = named.name});
      unit.parameters.push_back(
          std::make_unique<ParameterTensor>(named.tensor, parameter_of(named), std::move(mark), compute_->device()));
      all_parameters_.push_back(unit.parameters.back().get());
      known_.insert(named.tensor.unsafeGetTensorImpl());
    }
    for (NamedTensor& named : members.buffers) {
      unit.buffers.push_back(std::make_unique<BufferTensor>(named.tensor, compute_->device()));
      unit.buffer_names.push_back(named.name);
    }
  }

  void hand_over_values() {
    InitialValues values(world_, *sharded_);
    for (ModuleUnit& unit : units_) {
      if (!module_options_.initial) values.scatter(*unit.unit, unit.parameters);
      const Precision& precision = sharded_->plan().precision(unit.unit->index());
      for (const auto& parameter : unit.parameters) parameter->hand_over(precision);
      for (const auto& buffer : unit.buffers) {
        values.copy(*buffer);
        buffer->show(sharded_->buffer(buffer->buffer()));
      }
    }
    fill_other_buffers(*module_);
  }

  void make_sharded() {
    if (!learnt_.empty() && !options_.program) options_.program = learnt_program();
    sharded_.emplace(world_, options_);
    for (ModuleUnit& unit : units_) {
      std::vector<NamedParameter> parameters;
      for (const auto& parameter : unit.parameters) parameters.push_back({parameter->name(), &parameter->parameter()});
      std::vector<NamedBuffer> buffers;
      for (std::size_t i = 0; i < unit.buffers.size(); ++i) {
        buffers.push_back({unit.buffer_names[i], &unit.buffers[i]->buffer()});
      }
      unit.unit = &sharded_->add_unit(UnitOptions{.name = unit.name, .prefix = ""}, parameters, buffers);
    }
  }

  plan::Program learnt_program() const {
    plan::Program program;
    for (const std::size_t unit : learnt_) {
      program.micro_batch.push_back({unit, WindowKind::forward});
      program.evaluation.push_back({unit, WindowKind::evaluate});
    }
    for (auto unit = learnt_.rbegin(); unit != learnt_.rend(); ++unit) {
      program.micro_batch.push_back({*unit, WindowKind::backward});
    }
    return program;
  }

  void learn_use(std::size_t unit) {
    if (!learnt_.empty()) hide(learnt_.back());
    for (const auto& parameter : units_[unit].parameters) parameter->show_own();
    learnt_.push_back(unit);
  }

  bool in_pass() const { return phase_ == Phase::forward || phase_ == Phase::evaluation; }

  // It is part of the one around it, and may have less of a graph than that, but not more.
  void begin_inner_pass() {
    if (phase_ == Phase::evaluation && at::GradMode::is_enabled()) {
      throw UsageError(
          fmt::format("rank {}: a pass with gradients began inside an evaluation pass, whose windows have none: end "
                      "that first, or let torch::NoGradGuard hold for both",
                      world_.rank()));
    }
    ++passes_;
  }

  void leave_passes(Phase next) noexcept {
    if (open_) hide(open_->unit);
    compute_->leave();
    phase_ = next;
  }

  std::string text_of_failure() const {
    return fmt::format(
        "rank {}: an exception ended an earlier pass amid its units, so the model cannot go on: let it reach launch(), "
        "which tells the other ranks, and do not catch it around model->…",
        world_.rank());
  }

  void use_in_forward(std::size_t unit) {
    close();
    if (!used_.empty()) {
      turns_.push_back(Turn::root(compute_->device(), [this, window = used_.size()] { turn_from(window); }));
    }
    open(unit, WindowKind::forward);
    used_.push_back(unit);
  }

  // The backward pass has done with the forward window of this number.
  void turn_from(std::size_t window) {
    if (open_->unit != used_[window]) throw InternalError("torch ran a backward pass in an order of its own");
    open(used_[window - 1], WindowKind::backward);
  }

  void run_backward(const at::Tensor& loss) {
    std::vector<at::Tensor> roots = std::exchange(turns_, {});
    std::vector<at::Tensor> seeds(roots.size(), at::zeros({}, compute_->device()));
    roots.push_back(loss);
    const at::Tensor scale = view_of(const_cast<float*>(sharded_->loss_scale()), {}, DType::fp32, compute_->device());
    seeds.push_back(at::ones_like(loss) * scale.to(loss.options()));
    ::torch::autograd::backward(roots, seeds);
  }

  void open(std::size_t unit, WindowKind kind) {
    close();
    open_.emplace(OpenUnit{unit, ++windows_opened_, sharded_->open(*units_[unit].unit, kind)});
    // Torch computes, or enqueues, on this thread; the stream's is another one when tests queue it.
    if (sharded_->stream().mode() == StreamMode::queued) sharded_->stream().synchronize();
    for (const auto& parameter : units_[unit].parameters) parameter->show(open_->window);
  }

  void close() {
    if (!open_) return;
    hide(open_->unit);
    open_->window.close();
    open_.reset();
  }

  void hide(std::size_t unit) {
    for (const auto& parameter : units_[unit].parameters) parameter->hide();
  }

  // Throws unless the module still computes with the tensors that were given to the constructor.
  void require_unchanged() const {
    const std::vector<NamedTensor> now = distinct_parameters(*module_);
    for (const NamedTensor& parameter : now) {
      if (!known_.contains(parameter.tensor.unsafeGetTensorImpl())) {
        throw UsageError(fmt::format("parameter {} of the module is not the one that was sharded", parameter.name));
      }
    }
  }

  void require_frozen_as_before() const {
    for (ParameterTensor* parameter : all_parameters_) {
      if (parameter->tensor().requires_grad() != parameter->parameter().options().frozen) continue;
      throw UsageError(fmt::format("requires_grad of parameter {} changed after finalize()", parameter->name()));
    }
  }

  // The module goes on without the runtime: with its own values where they were never handed over, else without any.
  // The module is as it was before, also when the pass throws.
  void watch_uses(const std::function<void()>& forward_pass) {
    phase_ = Phase::learning;
    for (ParameterTensor* parameter : all_parameters_) parameter->hide();
    const std::shared_ptr<void> ends(nullptr, [this](void*) {
      for (ParameterTensor* parameter : all_parameters_) parameter->show_own();
      phase_ = Phase::not_finalized;
    });
    forward_pass();
  }

  void let_go() {
    if (std::exchange(gone_, true)) return;
    compute_->leave();
    turns_.clear();
    for (ParameterTensor* parameter : all_parameters_) parameter->let_go();
    if (phase_ == Phase::not_finalized || phase_ == Phase::learning) return;
    for (const ModuleUnit& unit : units_) {
      for (const auto& buffer : unit.buffers) buffer->let_go();
    }
  }

  World& world_;
  std::shared_ptr<::torch::nn::Module> module_;
  ModuleOptions module_options_;
  FullyShardOptions options_;
  std::unique_ptr<ComputeDevice> compute_;
  std::vector<ModuleUnit> units_;
  std::vector<ParameterTensor*> all_parameters_;
  std::unordered_set<const void*> known_;  // their tensors
  std::optional<tessera::FullyShard> sharded_;
  std::shared_ptr<const std::string> held_plan_;  // from finalize() on
  Phase phase_ = Phase::not_finalized;
  std::size_t passes_ = 0;           // inside each other
  std::size_t windows_before_ = 0;   // opened, when the outermost began
  std::vector<std::size_t> learnt_;  // units, in the order of their windows
  std::vector<std::size_t> used_;    // the same since the last backward pass
  std::vector<at::Tensor> turns_;    // one less
  std::optional<OpenUnit> open_;
  std::size_t windows_opened_ = 0;
  Bytes peak_activations_;
  bool gone_ = false;
  std::shared_ptr<const void> ends_with_world_;
};

ShardedModule::ShardedModule(World& world, std::shared_ptr<::torch::nn::Module> module, ModuleOptions module_options,
                             FullyShardOptions options)
    : implementation_(
          std::make_unique<Implementation>(world, std::move(module), std::move(module_options), std::move(options))) {}
ShardedModule::~ShardedModule() = default;

void ShardedModule::learn(const std::function<void()>& forward_pass) { implementation_->learn(forward_pass); }
void ShardedModule::finalize(std::unique_ptr<Optimizer> optimizer) { implementation_->finalize(std::move(optimizer)); }
void ShardedModule::backward(const at::Tensor& loss) { implementation_->backward(loss); }

void ShardedModule::update() { update(UpdateOptions{}); }
void ShardedModule::update(float learning_rate) { update(UpdateOptions{.learning_rate = learning_rate}); }
void ShardedModule::update(const UpdateOptions& options) {
  implementation_->require_idle("update()");
  implementation_->sharded().update(options);
}
void ShardedModule::skip_step() {
  implementation_->require_idle("skip_step()");
  implementation_->sharded().skip_step();
}
void ShardedModule::skip_step(float learning_rate) {
  implementation_->require_idle("skip_step()");
  implementation_->sharded().skip_step(learning_rate);
}
bool ShardedModule::finished() {
  implementation_->require_idle("finished()");
  return implementation_->sharded().finished();
}
StepReport ShardedModule::last_step() {
  implementation_->require_idle("last_step()");
  return implementation_->sharded().last_step();
}

Bytes ShardedModule::peak_activations() const { return implementation_->peak_activations(); }

tessera::FullyShard& ShardedModule::sharded() {
  implementation_->end_passes();
  return implementation_->sharded();
}
const Parameter& ShardedModule::parameter(std::string_view name) const { return implementation_->parameter(name); }

void ShardedModule::note_use(const at::Tensor& tensor) { implementation_->note_use(tensor); }
void ShardedModule::begin_pass() { implementation_->begin_pass(); }
void ShardedModule::end_pass() { implementation_->end_pass(); }
void ShardedModule::leave_pass() noexcept { implementation_->leave_pass(); }
void ShardedModule::fail_pass() noexcept { implementation_->fail_pass(); }
void ShardedModule::abandon() noexcept { implementation_->abandon(); }

}  // namespace tessera::torch
