// Passes: which window is open, and how autograd comes back to each.
#include "tessera/torch/fully_shard.hpp"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <thread>
#include <typeinfo>
#include <unordered_set>

#include "src/autograd_node.hpp"
#include "src/compute_device.hpp"
#include "src/granule_generators.hpp"
#include "src/hidden_tensor.hpp"
#include "src/initial_values.hpp"
#include "src/kept_state.hpp"
#include "src/module_tensors.hpp"
#include "src/module_units.hpp"
#include "src/pass_token.hpp"
#include "src/unit_order.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"
#include "tessera/shard/adapted_model.hpp"
#include "tessera/shard/watched_pass.hpp"

namespace tessera::torch {

using plan::WindowKind;

namespace {

// Stands in the graph between what two forward windows computed. Autograd runs nodes in the reverse of the order in
// which they were made, so it comes here when it has done with the later window and before it begins with the earlier.
// From there on the earlier window may open, and it does when the first of its parameters is used or has its gradient:
// the node of a user's torch::autograd::Function is older than the window that its forward() opened, so it comes after
// the turn and still belongs to the later window. A Turn is a root of the backward pass itself, because no tensor need
// lead from one window to the next.
class Turn : public ::torch::autograd::Node {
 public:
  explicit Turn(std::function<void()> reached) : reached_(std::move(reached)) {}

  // The nodes that it stands between are on the device of its gradient: autograd has an order for each.
  static NodePointer root(const at::Tensor& gradient, std::function<void()> reached) {
    NodePointer turn = make_node<Turn>(std::move(reached));
    turn->add_input_metadata(gradient);
    return turn;
  }

  ::torch::autograd::variable_list apply(::torch::autograd::variable_list&&) override {
    reached_();
    return {};
  }

 private:
  std::function<void()> reached_;
};

at::Tensor scalar_on(at::Device device) {
  const c10::InferenceMode normal(false);
  return at::zeros({}, device);
}

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
    if (!options_.cuda_stream) options_.cuda_stream = compute_->lasting_stream();
    // Torch would give each rank all of the machine's cores.
    at::set_num_threads(world.threads());
    for (UnitMembers& members : divide(*module_, module_options_.units)) take_up(members);
    prepare_values(*module_, module_options_.initial != nullptr);
    models_here().push_back(this);
  }
  ~Implementation() override {
    std::erase(models_here(), this);
    let_go();
  }

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
    require_known_parameters();
    require_known("buffer", distinct_buffers(*module_));
    require_registered();
    prepare_values(*module_, module_options_.initial != nullptr);
    for (ParameterTensor* parameter : all_parameters_) {
      parameter->take_own();
      parameter->require_no_gradient();
      parameter->parameter().set_frozen(!parameter->tensor().requires_grad());
    }
    for (const BufferTensor* buffer : all_buffers_) buffer->require_usable();
    tessera::FullyShard& model = sharded();
    model.finalize(std::move(optimizer));
    try {
      hand_over_values();
    } catch (...) {
      // Other ranks wait for this one's part, also where its caller catches this.
      give_up();
    }
    model.shards_changed();
    hold_plan();
    model.refresh_buffers_with([this] {
      require_known("buffer", distinct_buffers(*module_));
      for (BufferTensor* buffer : all_buffers_) buffer->to_runtime();
    });
    note_order();
    of_turns_ = scalar_on(compute_->device());
    if (model.granules().total > 0) generators_.emplace(compute_->device());
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
    settle();
    require_known_parameters();
    follow_requires_grad();
    const Phase next = at::GradMode::is_enabled() ? Phase::forward : Phase::evaluation;
    if (next == Phase::forward) begin_micro_batch();
    for (BufferTensor* buffer : all_buffers_) buffer->from_runtime();
    if (next == Phase::forward) begin_granule();
    if (used_.empty()) compute_->begin_count();
    compute_->enter(sharded_->stream());
    if (next == Phase::forward && generators_) generators_->enter();
    phase_ = next;
    thread_ = std::this_thread::get_id();
    passes_ = 1;
    windows_before_ = windows_opened_;
    around_ = std::exchange(pass_token(), token_);
  }

  void end_pass() {
    leave_pass();
    if (phase_ == Phase::idle) settle();
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
    if (phase_ != Phase::backward) require_own_thread(parameter, operation);
    switch (phase_) {
      case Phase::learning: return learn_use(unit);
      case Phase::forward: return use_in_forward(unit, parameter, operation);
      case Phase::evaluation: return use_between_or_evaluate(unit, parameter, operation);
      case Phase::backward:
        if (unplanned_) return evaluate(unit);
        if (go_back_to(unit)) return;
        throw UsageError(fmt::format(
            "rank {}: {} uses parameter {} of unit {} in the backward pass of unit {}: what a hook or a function of "
            "your own needs of another unit it keeps from the forward pass (clone())",
            world_.rank(), operation, parameter, units_[unit].name, units_[open_->unit].name));
      case Phase::failed: throw UsageError(text_of_failure());
      case Phase::not_finalized:
      case Phase::idle: break;
    }
    const char* const graph_task = call_of_graph_task();
    throw UsageError(fmt::format(
        "rank {}: {} was to use parameter {} outside of a pass: the parameters of unit {} are whole only "
        "while model->… computes: {}",
        world_.rank(), operation, parameter, units_[unit].name,
        graph_task != nullptr
            ? graph_task
            : fmt::format("do it in model.pass(…), or read sharded().whole(model.parameter(\"{}\"))", parameter)));
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
    std::vector<Implementation*> models{this};
    for (Implementation* other : models_here()) {
      if (other != this && other->has_part_in(loss)) models.push_back(other);
    }
    try {
      for (const Implementation* model : models) model->require_buffers_as_before();
      for (Implementation* model : models) model->begin_backward(loss);
      if (generators_) generators_->enter();
      run_backward(loss, models);
      if (generators_) generators_->leave();
      for (Implementation* model : models) model->end_backward();
    } catch (...) {
      if (generators_) generators_->leave();
      for (Implementation* model : models) model->compute_->leave();
      give_up();
    }
  }

  void copy_to(::torch::nn::Module* plain) {
    require_idle("copy_to()");
    const at::NoGradGuard no_graph;
    const auto take = [&](auto tensors, const std::string& name, const at::Tensor& values) {
      at::Tensor* const place = tensors.find(name);
      if (place == nullptr || place->sizes() != values.sizes()) {
        throw UsageError(fmt::format("copy_to(): the plain module has no tensor {} of the model's shape {}", name,
                                     tessera::to_string(shape_of(values))));
      }
      place->copy_(values);
    };
    for (ParameterTensor* parameter : all_parameters_) {
      std::vector<float> values = sharded_->whole(parameter->parameter());
      if (plain == nullptr) continue;
      take(plain->named_parameters(), parameter->name(),
           view_of(values.data(), parameter->tensor().sizes(), DType::fp32, at::kCPU));
    }
    if (plain == nullptr) return;
    for (BufferTensor* buffer : all_buffers_) take(plain->named_buffers(), buffer->name(), buffer->own());
  }

  void zero_grad() {
    require_idle("zero_grad()");
    if (!used_.empty()) drop_pass();
    drop_gradients();
  }

  // The runtime, for a call that ends a step and writes to parameters: torch counts such a write, so that it refuses
  // the graph of an earlier pass that has saved one of them.
  tessera::FullyShard& ending_step(std::string_view call) {
    require_idle(call);
    for (ParameterTensor* parameter : all_parameters_) {
      const bool asked = parameter->take_gradient_asked();
      if (asked || parameter->has_given_gradient()) refuse_gradient(*parameter);
    }
    if (keeps_step_) {
      compute_->enter(sharded_->stream());
      give_kept();
      compute_->leave();
    }
    end_step();
    for (ParameterTensor* parameter : all_parameters_) {
      if (!parameter->parameter().options().frozen) parameter->tensor().unsafeGetTensorImpl()->bump_version();
    }
    return *sharded_;
  }

  Bytes peak_activations() const { return peak_activations_; }

  void take_gradient(std::size_t unit, ParameterTensor& parameter, const at::Tensor& gradient) override {
    if (phase_ == Phase::backward && unplanned_) return parameter.keep_gradient(gradient, windows_opened_);
    if (phase_ != Phase::backward || !(open_->unit == unit || go_back_to(unit))) {
      throw UsageError(fmt::format(
          "rank {}: the gradient of {} came outside of the backward window of unit {}: call model.backward(loss), not "
          "loss.backward()",
          world_.rank(), parameter.name(), units_[unit].name));
    }
    parameter.take_gradient(open_->window, open_->serial, gradient);
  }

  // Does what FullyShard::abandon() does, before the window's handle ends: it would not know the cause.
  [[noreturn]] void give_up() {
    try {
      throw;
    } catch (const AbortedError&) {
      throw;  // another rank failed first
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace() + in_unit();
      world_.abort(text);
      // One of a class of its own may be somebody's to catch.
      if (typeid(error) != typeid(c10::Error)) throw;
      throw c10::Error(text, {});
    } catch (const std::exception& error) {
      world_.abort(error.what());
      throw;
    } catch (...) {
      world_.abort("something that is no std::exception was thrown");
      throw;
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
      auto mark = std::make_shared<ParameterMark>(ParameterMark{.owner = this, .unit = index, .parameter = named.name});
      unit.parameters.push_back(
          std::make_unique<ParameterTensor>(named.tensor, parameter_of(named), std::move(mark), compute_->device()));
      all_parameters_.push_back(unit.parameters.back().get());
      known_.insert(named.tensor.unsafeGetTensorImpl());
    }
    for (NamedTensor& named : members.buffers) {
      unit.buffers.push_back(std::make_unique<BufferTensor>(named.tensor, named.name, compute_->device()));
      all_buffers_.push_back(unit.buffers.back().get());
      known_.insert(named.tensor.unsafeGetTensorImpl());
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
  }

  void make_sharded() {
    if (!learnt_.empty() && !options_.program) options_.program = program_of(learnt_, learnt_);
    sharded_.emplace(world_, options_);
    for (ModuleUnit& unit : units_) {
      std::vector<NamedParameter> parameters;
      for (const auto& parameter : unit.parameters) parameters.push_back({parameter->name(), &parameter->parameter()});
      std::vector<NamedBuffer> buffers;
      for (const auto& buffer : unit.buffers) buffers.push_back({buffer->name(), &buffer->buffer()});
      unit.unit = &sharded_->add_unit(options_of(unit.name), parameters, buffers);
    }
  }

  UnitOptions options_of(const std::string& unit) const {
    UnitOptions options;
    for (const UnitRule& rule : module_options_.per_unit) {
      if (!matches({rule.pattern}, unit)) continue;
      options = rule.options;
      break;
    }
    if (!options.name.empty() || options.prefix || options.recompute || options.optional || !options.apart.empty()) {
      throw UsageError(fmt::format(
          "unit {}: ModuleOptions::per_unit takes precision, prefetch, reshard_after_forward and optimizer; parts are "
          "computed again by tessera::torch::checkpoint(), and may_be_unused names what passes may leave out",
          unit));
    }
    options.name = unit;
    options.prefix = "";
    return options;
  }

  void learn_use(std::size_t unit) {
    close();
    open_.emplace(OpenUnit{unit, 0, learning_->open({unit, WindowKind::forward})});
    for (const auto& parameter : units_[unit].parameters) parameter->show_own();
  }

  // Where an error of libtorch's came: the unit that was used last, and what may be wrong there.
  std::string in_unit() const {
    if (!open_ || !sharded_) return "";
    const DType type = sharded_->plan().precision(open_->unit).parameter;
    return fmt::format("\n(rank {}, in a window of unit {}{})", world_.rank(), units_[open_->unit].name,
                       type == DType::fp32
                           ? ""
                           : fmt::format(", which shows parameters in {}: its inputs and buffers must be of that type, "
                                         "or the unit of fp32 by ModuleOptions::per_unit, as batch norms need",
                                         tessera::to_string(type)));
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
    if (generators_) generators_->leave();
    compute_->leave();
    phase_ = next;
    pass_token() = std::move(around_);
  }

  std::string text_of_failure() const {
    return fmt::format(
        "rank {}: an exception ended an earlier pass amid its units, so the model cannot go on: let it reach launch(), "
        "which tells the other ranks, and do not catch it around model->…",
        world_.rank());
  }

  // ---- the order of units ----

  // The models of this thread that live: a loss may come through several.
  static std::vector<Implementation*>& models_here() {
    thread_local std::vector<Implementation*> models;
    return models;
  }

  // In which order units come, where the model's one program is a forward pass and then a backward pass.
  void note_order() {
    const plan::Plan& plan = sharded_->plan();
    if (plan.programs.size() != 1) return;
    UnitOrder forwards;
    std::size_t backwards = 0;
    for (const plan::WindowUse& use : plan.programs.front().micro_batch) {
      if (use.resumes || use.kind == WindowKind::recompute) return;
      if (use.kind == WindowKind::forward && backwards > 0) return;
      use.kind == WindowKind::forward ? forwards.push_back(use.unit) : void(++backwards);
    }
    if (backwards != forwards.size()) return;
    UnitOrder evaluations;
    for (const plan::WindowUse& use : plan.programs.front().evaluation) {
      if (use.resumes) return;
      evaluations.push_back(use.unit);
    }
    forwards_ = std::move(forwards);
    evaluations_ = std::move(evaluations);
  }

  // The module's own zero_grad(), behind backward() and in front of the next pass, drops what that brought.
  void follow_zero_grad() {
    std::size_t asked = 0;
    ParameterTensor* other = nullptr;
    for (ParameterTensor* parameter : all_parameters_) {
      const bool was_asked = parameter->take_gradient_asked();
      if (parameter->has_given_gradient()) refuse_gradient(*parameter);
      if (was_asked) ++asked;
      if (!was_asked && !parameter->parameter().options().frozen) other = parameter;
    }
    if (asked == 0 || is_between_steps()) return;
    if (other != nullptr) refuse_gradient(*other);
    end_granule();
    drop_gradients();
  }

  // All that backward() has brought since the last update.
  void drop_gradients() {
    if (!plan_is_between_steps()) sharded_->discard_gradients();
    for (ParameterTensor* parameter : all_parameters_) parameter->drop_kept_gradient();
    end_step();
  }

  [[noreturn]] void refuse_gradient(const ParameterTensor& parameter) const {
    throw UsageError(fmt::format(
        "rank {}: mutable_grad() of {}, or zero_grad() of the module amid a step, changes nothing, because gradients "
        "go to the ranks' shards: drop them by model.zero_grad(), change them by a hook (register_hook(), "
        "sharded().on_reduced_gradient())",
        world_.rank(), parameter.name()));
  }

  // With gradients: what was thrown away since the last backward pass is dropped.
  void begin_micro_batch() {
    if (!used_.empty() && !forwards_.empty() && is_thrown_away()) drop_pass();
    if (!used_.empty()) return;
    follow_zero_grad();
    token_ = std::make_shared<const int>();
    if (is_between_steps()) done_ = 0;
    begins_step_ = sharded_->plan().micro_batches(0) == 1 || plan_is_between_steps();
    unplanned_ = interleaves_ && begins_step_;
  }

  // With granules: its random numbers begin where every rank's would that computed it.
  void begin_granule() {
    if (!generators_ || granules_begun_ > granules_done_) return;
    if (granules_begun_ > 0 && is_between_steps()) end_step();  // a call of sharded() has ended it
    if (granules_begun_ == 0) {
      const StepReport before = sharded_->last_step();
      step_ = static_cast<std::uint64_t>(before.updates + before.skipped_updates);
      keep_buffers();
    }
    generators_->begin(
        {.seed = options_.seed, .step = step_, .granule = std::uint64_t{sharded_->granules().number(granules_begun_)}});
    ++granules_begun_;
  }

  // Those that passes are not to write.
  void keep_buffers() {
    const at::NoGradGuard no_graph;
    for (const BufferTensor* buffer : all_buffers_) {
      if (matches(module_options_.own_buffers, buffer->name())) continue;
      buffers_before_.push_back({buffer, buffer->own().detach().clone()});
    }
  }

  // In a step's first granule. Torch does not count what its norms write as new versions, so values are compared.
  void require_buffers_as_before() const {
    for (const auto& [buffer, before] : buffers_before_) {
      const at::Tensor now = buffer->own().detach();
      if (now.sizes() == before.sizes() && at::allclose(now, before, 0.0, 0.0, true)) continue;
      throw UsageError(fmt::format(
          "rank {}: a pass has written to buffer {}, and the model has granules: what is written follows the granules "
          "that this rank computes, so it depends on the number of ranks, as a batch norm's running moments do. Freeze "
          "it (norms: track_running_stats(false), or eval()), or name it in ModuleOptions::own_buffers where that may "
          "be so",
          world_.rank(), buffer->name()));
    }
  }

  void end_granule() {
    granules_done_ = granules_begun_;
    buffers_before_.clear();
  }
  void end_step() {
    granules_begun_ = granules_done_ = 0;
    done_ = 0;
    keeps_step_ = hooks_are_done_ = false;
  }

  bool is_between_steps() const { return !keeps_step_ && plan_is_between_steps(); }
  bool plan_is_between_steps() const { return sharded_->is_between_steps(); }

  // No graph leads to a trained parameter of the units that were used, nor to a checkpointed part.
  bool is_thrown_away() const {
    bool trains = false;
    for (const std::size_t unit : used_) {
      for (const auto& parameter : units_[unit].parameters) {
        if (parameter->is_in_graph()) return false;
        trains = trains || !parameter->parameter().options().frozen;
      }
    }
    return trains && token_.use_count() == 1;
  }

  // Windows that the pass left out come, too, so that ranks may differ in what they drop; gradients are zero.
  void drop_pass() {
    settle();
    if (std::exchange(unplanned_, false)) used_.clear();
    ++done_;
    compute_->enter(sharded_->stream());
    keeps_step_ ? give_kept_in_time() : finish_windows();
    compute_->leave();
    end_granule();
    if (sharded_->plan().micro_batches(0) == 1) drop_gradients();
  }

  void begin_forward(std::size_t unit) {
    close();
    if (!used_.empty()) {
      turns_.push_back(Turn::root(of_turns_, [this, window = used_.size()] { turn_from(window); }));
    }
    open(unit, WindowKind::forward);
    used_.push_back(unit);
  }

  // The rest of a micro-batch's windows, without a pass: parameters get the gradients that were kept, or zero.
  void finish_windows() {
    close();
    while (used_.size() < forwards_.size()) begin_forward(forwards_[used_.size()]);
    turns_.clear();
    backward_begun_ = windows_opened_ + 1;
    for (window_ = used_.size(); window_ > 0;) {
      go_back();
      for (const auto& parameter : units_[open_->unit].parameters) {
        parameter->give_gradient(open_->window, open_->serial);
      }
    }
    close();
    used_.clear();
  }

  // ---- passes that no plan has the order for ----

  // The windows that the pass has opened end without gradients. It goes on in windows of evaluations, which come in any
  // order, forward and backward; its gradients are kept until the planned windows.
  void leave_plan(const std::string& where, const std::string& cause) {
    if (unplanned_) return;
    if (sharded_->plan().diverges() || (done_ > 0 && generators_)) throw UsageError(cause);
    meet(where);
    const UnitOrder used = used_;
    sharded_->without_gradient_hook([this] {
      if (!used_.empty()) finish_windows();
      sharded_->discard_gradients();
    });
    used_ = used;
    if (done_ > 0) keep_step();
  }

  // Only the beginning of a step takes another plan, or an evaluation. So what the plan has summed of this one is kept
  // here, as every rank's part of the sum, and the step begins once more.
  void keep_step() {
    const plan::Plan& plan = sharded_->plan();
    const double share = static_cast<double>(plan.gradient_divisor(0)) / static_cast<double>(world_.size());
    for (ParameterTensor* parameter : all_parameters_) {
      if (parameter->parameter().options().frozen) continue;
      std::vector<float> sum = sharded_->whole(parameter->parameter(), "gradient");
      const at::Tensor values = view_of(sum.data(), parameter->tensor().sizes(), DType::fp32, at::kCPU);
      parameter->keep_gradient((values * share).to(compute_->device()), windows_opened_);
    }
    keeps_step_ = true;
    hooks_are_done_ = done_ == plan.micro_batches(0);
  }

  // The plan has as many micro-batches as the step has had, the first with the gradients of all.
  void give_kept() {
    if (!std::exchange(keeps_step_, false)) return;
    const auto give = [this] {
      for (std::size_t micro_batch = 0; micro_batch < done_; ++micro_batch) finish_windows();
    };
    std::exchange(hooks_are_done_, false) ? sharded_->without_gradient_hook(give) : give();
  }
  // Where evaluations come inside of steps, behind the last micro-batch.
  void give_kept_in_time() {
    if (!interleaves_ || generators_ || done_ == sharded_->plan().micro_batches(0)) give_kept();
  }

  // Where another rank is elsewhere, both errors say where this one is.
  void meet(const std::string& why) {
    if (world_.size() > 1) world_.barrier(why);
  }

  void use_unplanned(std::size_t unit) {
    used_.push_back(unit);
    evaluate(unit);
  }

  // An evaluation between a forward pass and its backward pass, or between micro-batches, is in no plan.
  void use_between_or_evaluate(std::size_t unit, const std::string& parameter, const std::string& operation) {
    if (!used_.empty() || !(open_ || plan_is_between_steps())) {
      leave_plan(fmt::format("unit {} was evaluated inside a step, as it must be on every rank", units_[unit].name),
                 fmt::format("rank {}: {} uses parameter {} of unit {} in an evaluation inside a step, {}: evaluate in "
                             "front of forward(), or behind update()",
                             world_.rank(), operation, parameter, units_[unit].name, why_not_inside_step()));
      unplanned_ = !used_.empty();
      interleaves_ = true;
    }
    evaluate(unit);
  }

  // Behind its backward pass the step has the planned windows all the same, by a plan that the next such step goes by.
  void end_unplanned() {
    settle();
    for (const ModuleUnit& unit : units_) require_gradients(unit);
    phase_ = Phase::idle;
    const UnitOrder forwards = joined(forwards_, std::exchange(used_, {}));
    plan::Program program = program_of(forwards, interleaves_ ? there_and_back(evaluations_) : evaluations_);
    const plan::Program& before = sharded_->plan().programs.front();
    if (program.micro_batch != before.micro_batch || program.evaluation != before.evaluation) {
      say_what_it_costs(forwards.size());
      replan(std::move(program));
    }
    unplanned_ = false;
    keeps_step_ = true;
    give_kept_in_time();
  }

  void say_what_it_costs(std::size_t windows) {
    if (std::exchange(said_, true) || world_.rank() != 0) return;
    world_.warn(
        interleaves_
            ? "a pass evaluates inside a step: such steps gather each unit several times, and hold all gradients whole "
              "until their end; evaluate in front of forward(), or behind update(), to spare that"
            : fmt::format("a step used units in an order that was not learnt: it held all gradients whole until its "
                          "end, and a plan was made for its order, too, of {} forward windows in place of {}, which "
                          "every step goes through; model.learn() is shown the longest pass before finalize()",
                          windows, forwards_.size()));
  }

  // The runtime takes new memory, in which buffers stand.
  void replan(std::optional<plan::Program> program = std::nullopt) {
    for (BufferTensor* buffer : all_buffers_) buffer->to_runtime();
    held_plan_.reset();
    program ? sharded_->recompile(std::move(*program)) : sharded_->recompile();
    hold_plan();
    for (BufferTensor* buffer : all_buffers_) buffer->move(sharded_->buffer(buffer->buffer()));
    note_order();
  }

  void hold_plan() {
    held_plan_ = sharded_->hold_plan(
        "a module of libtorch trains, whose buffers stand in its memory: change requires_grad between steps, and the "
        "next pass makes the plan anew");
  }

  // Units in front of this one that the pass does not use have their windows all the same.
  void use_in_forward(std::size_t unit, const std::string& parameter, const std::string& operation) {
    if (unplanned_) return use_unplanned(unit);
    const std::size_t done = std::min(used_.size(), forwards_.size());
    const auto found = std::find(forwards_.begin() + static_cast<std::ptrdiff_t>(done), forwards_.end(), unit);
    if (!forwards_.empty() && found == forwards_.end()) {
      leave_plan(
          fmt::format(
              "unit {} came {}, an order that is not learnt, as it must on every rank (learn() knows the longest)",
              units_[unit].name,
              used_.empty() ? std::string("first") : fmt::format("behind {}", units_[used_.back()].name)),
          text_of_order(unit, parameter, operation));
      unplanned_ = true;
      return use_unplanned(unit);
    }
    while (found != forwards_.end() && forwards_[used_.size()] != unit) begin_forward(forwards_[used_.size()]);
    begin_forward(unit);
  }

  std::string text_of_order(std::size_t unit, const std::string& parameter, const std::string& operation) const {
    return fmt::format(
        "rank {}: {} uses parameter {}, and the forward window of unit {} was opened out of order, {}: show the "
        "longest pass to model.learn() before finalize(), or make one unit of what takes turns (.units = "
        "tessera::torch::named({{}}))",
        world_.rank(), operation, parameter, units_[unit].name, why_not_inside_step());
  }
  std::string_view why_not_inside_step() const {
    return sharded_->plan().diverges()
               ? "where replicas train by themselves, whose plan stays as it is"
               : "behind other granules of the step, whose sum begun would lose its bits outside of the plan";
  }

  // In any order: the program's evaluation is gone through, as often as it takes.
  void evaluate(std::size_t unit) {
    if (std::find(evaluations_.begin(), evaluations_.end(), unit) == evaluations_.end()) {
      return open(unit, WindowKind::evaluate);
    }
    while (evaluations_[evaluated_] != unit) evaluate_next();
    evaluate_next();
  }
  void evaluate_next() {
    open(evaluations_[evaluated_], WindowKind::evaluate);
    evaluated_ = (evaluated_ + 1) % evaluations_.size();
  }

  // Closes what a pass left open, and the rest of an evaluation that it did not use.
  void settle() {
    close();
    while (evaluated_ != 0) evaluate_next();
    close();
  }

  // ---- the backward pass ----

  // Whether this model's passes since its last backward pass have led to the loss.
  bool has_part_in(const at::Tensor& loss) {
    if (!(phase_ == Phase::idle || phase_ == Phase::forward) || used_.empty()) return false;
    std::unordered_set<const Node*> seen;
    std::vector<const Node*> next{loss.grad_fn().get()};
    while (!next.empty()) {
      const Node* const node = next.back();
      next.pop_back();
      if (node == nullptr || !seen.insert(node).second) continue;
      for (const auto& edge : node->next_edges()) next.push_back(edge.function.get());
    }
    const bool has_part =
        std::any_of(all_parameters_.begin(), all_parameters_.end(),
                    [&](const ParameterTensor* parameter) { return seen.contains(parameter->accumulator()); });
    if (has_part) end_passes();
    return has_part;
  }

  void begin_backward(const at::Tensor& loss) {
    close();
    // Nothing stands there yet.
    if (begins_step_) {
      for (ParameterTensor* parameter : all_parameters_) parameter->take_gradient_asked();
    }
    while (!unplanned_ && used_.size() < forwards_.size()) begin_forward(forwards_[used_.size()]);
    phase_ = Phase::backward;
    compute_->enter(sharded_->stream());
    compute_->note_use(loss);
    backward_begun_ = ++windows_opened_;
    if (unplanned_) return;
    window_ = reached_ = used_.size() - 1;
    open(used_.back(), WindowKind::backward);
  }

  void end_backward() {
    reached_ = 0;
    while (!unplanned_ && window_ > 0) go_back();
    close();
    peak_activations_ = std::max(peak_activations_, compute_->most_counted());
    ++done_;
    if (unplanned_) end_unplanned();
    compute_->leave();
    used_.clear();
    end_granule();
    phase_ = Phase::idle;
  }

  // Behind the last of a unit's backward windows.
  void require_gradients() const {
    const auto earlier = used_.begin() + static_cast<std::ptrdiff_t>(window_);
    if (std::find(used_.begin(), earlier, open_->unit) == earlier) require_gradients(units_[open_->unit]);
  }
  void require_gradients(const ModuleUnit& unit) const {
    for (const auto& parameter : unit.parameters) {
      const ParameterOptions& options = parameter->parameter().options();
      if (options.frozen || options.optional || parameter->tensor().numel() == 0) continue;
      if (parameter->written_in() >= backward_begun_) continue;
      throw UsageError(fmt::format(
          "rank {}, backward window of unit {}: the gradient of {} was never asked for: where passes may do "
          "without it, name it in ModuleOptions::may_be_unused",
          world_.rank(), unit.name, parameter->name()));
    }
  }

  // The backward pass has done with the forward window of this number, but for what may be older than it.
  void turn_from(std::size_t window) {
    if (reached_ != window) throw InternalError("torch ran a backward pass in an order of its own");
    --reached_;
  }

  void go_back() { open(used_[--window_], WindowKind::backward); }

  // To the latest window of the unit that the backward pass has reached. False: there is none, and nothing happens.
  bool go_back_to(std::size_t unit) {
    std::size_t window = window_;
    do {
      if (window == reached_) return false;
    } while (used_[--window] != unit);
    while (window_ > window) go_back();
    return true;
  }

  // Where autograd runs outside of backward(): what to call instead, to end an error with. Null where it does not run.
  static const char* call_of_graph_task() {
    const auto* nodes = ::torch::autograd::get_current_graph_task_exec_info();
    if (nodes == nullptr) return nullptr;
    return nodes->empty() ? "call model.backward(loss), not loss.backward()"
                          : "call torch::autograd::grad() in the pass that its result came from, model.pass(…)";
  }

  void run_backward(const at::Tensor& loss, const std::vector<Implementation*>& models) {
    ::torch::autograd::edge_list roots;
    for (Implementation* model : models) {
      for (NodePointer& turn : std::exchange(model->turns_, {})) roots.emplace_back(std::move(turn), 0);
    }
    std::vector<at::Tensor> seeds(roots.size(), of_turns_);
    roots.push_back(::torch::autograd::impl::gradient_edge(loss));
    const at::Tensor scale = view_of(const_cast<float*>(sharded_->loss_scale()), {}, DType::fp32, compute_->device());
    seeds.push_back(at::ones_like(loss) * scale.to(loss.options()));
    ::torch::autograd::Engine::get_default_engine().execute(roots, seeds, false, false, true);
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
    if (phase_ == Phase::backward && open_->window.kind() == WindowKind::backward) require_gradients();
    hide(open_->unit);
    open_->window.close();
    open_.reset();
  }

  void hide(std::size_t unit) {
    for (const auto& parameter : units_[unit].parameters) parameter->hide();
  }

  bool knows(const at::Tensor& tensor) const { return known_.contains(tensor.unsafeGetTensorImpl()); }
  void require_known_parameters() const {
    if (has_only(*module_, [this](const at::Tensor& parameter) { return knows(parameter); })) return;
    require_known("parameter", distinct_parameters(*module_));
  }
  void require_known(std::string_view kind, const std::vector<NamedTensor>& tensors) const {
    for (const NamedTensor& tensor : tensors) {
      if (knows(tensor.tensor)) continue;
      throw UsageError(fmt::format(
          "{0} {1} of the module is not the one that was sharded: make and register every {0} before FullyShard", kind,
          tensor.name));
    }
  }

  void require_registered() const {
    std::unordered_set<const void*> registered;
    for (const NamedTensor& named : distinct_parameters(*module_))
      registered.insert(named.tensor.unsafeGetTensorImpl());
    for (const ParameterTensor* parameter : all_parameters_) {
      if (registered.contains(parameter->tensor().unsafeGetTensorImpl())) continue;
      throw UsageError(fmt::format(
          "parameter {} is no more in the module that was sharded with it: take parts out before FullyShard",
          parameter->name()));
    }
  }

  // Windows open in the order of one thread's operators, and autograd numbers nodes by thread.
  void require_own_thread(const std::string& parameter, const std::string& operation) const {
    if (!in_pass() || std::this_thread::get_id() == thread_) return;
    const bool by_autograd = call_of_graph_task() != nullptr;
    throw UsageError(fmt::format(
        "rank {}: {} uses parameter {} on another thread than the pass that it is part of: {}", world_.rank(),
        operation, parameter,
        by_autograd
            ? "on CUDA autograd has threads of its own, so torch::autograd::grad() takes units in one, named({})"
            : "let the rank's own thread compute all of a pass (libtorch divides operators among "
              "LaunchOptions::threads)"));
  }

  // The plan is made anew for what is trained from now on, and what no more: the same on every rank.
  void follow_requires_grad() {
    std::vector<ParameterTensor*> changed;
    for (ParameterTensor* parameter : all_parameters_) {
      if (parameter->tensor().requires_grad() == parameter->parameter().options().frozen) changed.push_back(parameter);
    }
    if (changed.empty()) return;
    if (!used_.empty() || !is_between_steps()) changed.front()->refuse_change_inside_step();
    for (ParameterTensor* parameter : changed) parameter->follow_requires_grad();
    meet(fmt::format("new plan, because requires_grad of {} changed, as it must on every rank",
                     changed.front()->name()));
    replan();
  }

  // The module goes on without the runtime: with its own values where they were never handed over, else without any.
  // The module is as it was before, and so are its buffers and torch's generators, also when the pass throws.
  void watch_uses(const std::function<void()>& forward_pass) {
    for (ParameterTensor* parameter : all_parameters_) parameter->take_own();
    const KeptState before(*module_, compute_->device());
    phase_ = Phase::learning;
    learning_.emplace();
    for (const ModuleUnit& unit : units_) learning_->add(UnitOptions{.name = unit.name});
    for (ParameterTensor* parameter : all_parameters_) parameter->hide();
    const std::shared_ptr<void> ends(nullptr, [&](void*) {
      open_.reset();
      learning_.reset();
      for (ParameterTensor* parameter : all_parameters_) parameter->show_own();
      before.put_back();
      phase_ = Phase::not_finalized;
    });
    forward_pass();
    close();
    for (const plan::WindowUse& use : learning_->take_windows()) learnt_.push_back(use.unit);
  }

  void let_go() {
    if (std::exchange(gone_, true)) return;
    if (generators_) generators_->leave();
    compute_->leave();
    turns_.clear();
    for (ParameterTensor* parameter : all_parameters_) parameter->let_go();
    for (BufferTensor* buffer : all_buffers_) buffer->let_go();
  }

  World& world_;
  std::shared_ptr<::torch::nn::Module> module_;
  ModuleOptions module_options_;
  FullyShardOptions options_;
  std::unique_ptr<ComputeDevice> compute_;
  std::vector<ModuleUnit> units_;
  std::vector<ParameterTensor*> all_parameters_;
  std::vector<BufferTensor*> all_buffers_;
  std::unordered_set<const void*> known_;  // their tensors
  std::optional<AdaptedModel> sharded_;
  std::shared_ptr<const std::string> held_plan_;  // from finalize() on
  Phase phase_ = Phase::not_finalized;
  std::optional<StandInModel> learning_;  // while a pass is watched
  UnitOrder learnt_;                      // its windows
  std::size_t passes_ = 0;                // inside each other
  std::thread::id thread_;                // whose they are
  std::size_t windows_before_ = 0;        // opened, when the outermost began
  UnitOrder used_;                        // units, since the last backward pass
  std::vector<NodePointer> turns_;        // one less
  at::Tensor of_turns_;                   // the gradient that starts each
  std::size_t window_ = 0;                // of used_, that is open in a backward pass
  std::size_t reached_ = 0;               // the earliest one that may be
  std::size_t backward_begun_ = 0;        // the serial number of its first window
  // Units in the order of their windows; empty where programs are others than a forward and a backward pass.
  UnitOrder forwards_;
  UnitOrder evaluations_;
  std::size_t evaluated_ = 0;           // of evaluations_, in the evaluation that is under way
  bool begins_step_ = true;             // the first of used_ did
  std::size_t done_ = 0;                // micro-batches, of this step
  bool keeps_step_ = false;             // their gradients are kept, and the plan has had none of them
  bool hooks_are_done_ = false;         // with these, as the step had come to its end
  bool unplanned_ = false;              // the passes since the last backward pass, in windows of evaluations
  bool interleaves_ = false;            // evaluations come between forward and backward passes
  bool said_ = false;                   // what that costs
  std::shared_ptr<const void> token_;   // kept by the checkpointed parts of the passes since the last backward pass
  std::shared_ptr<const void> around_;  // that of the pass around this one, of another model
  std::optional<GranuleGenerators> generators_;  // with granules
  std::uint64_t step_ = 0;                       // these are of the step that is under way, with granules
  std::size_t granules_begun_ = 0;
  std::size_t granules_done_ = 0;
  std::vector<std::pair<const BufferTensor*, at::Tensor>> buffers_before_;  // values; in its first granule
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
void ShardedModule::update(const UpdateOptions& options) { implementation_->ending_step("update()").update(options); }
void ShardedModule::zero_grad() { implementation_->zero_grad(); }
void ShardedModule::copy_to(::torch::nn::Module* plain) { implementation_->copy_to(plain); }
void ShardedModule::skip_step() { implementation_->ending_step("skip_step()").skip_step(); }
void ShardedModule::skip_step(float learning_rate) {
  implementation_->ending_step("skip_step()").skip_step(learning_rate);
}
bool ShardedModule::finished() {
  implementation_->require_idle("finished()");
  return implementation_->sharded().finished();
}
StepReport ShardedModule::last_step() {
  implementation_->require_idle("last_step()");
  return implementation_->sharded().last_step();
}

Granules ShardedModule::granules() {
  implementation_->require_idle("granules()");
  return implementation_->sharded().granules();
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
void ShardedModule::give_up() { implementation_->give_up(); }

}  // namespace tessera::torch
