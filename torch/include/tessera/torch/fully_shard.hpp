// FullyShard for torch::nn::Module: the module's own code, sharded.
//
//   auto net = std::make_shared<Net>();
//   tessera::torch::FullyShard model(world, net, {.units = tessera::torch::children_of("blocks")});
//   model.finalize(tessera::AdamW{.learning_rate = 3e-4f});
//   auto loss = torch::cross_entropy_loss(model.forward(batch.data), batch.target);
//   model.backward(loss);
//   model.update();
//
// Where ranks compute on CUDA devices (a libtorch with CUDA, one device for each rank) the model's stream is torch's
// current one inside a pass and in backward(): behind what torch's current stream was given before, and in front of
// what it is given after. It is of torch's pool, or FullyShardOptions::cuda_stream, which then outlives what the model
// is called with. Whatever other streams of torch's bring along, their user tells torch's allocator, as ever
// (record_stream).
//
// A parameter keeps its tensor for the model's life: its shape, its type, its place in the module. Its values are the
// memory of its unit's window. Outside of windows the tensor is hidden: its shape can be asked for, and whatever torch
// would compute with it is an error, but for a pass, where the first such use opens the unit's window and closes the
// one before it. So a unit's window lasts from the first use of one of its parameters to the first use of another
// unit's.
//
// With granules (FullyShardOptions::granules) a rank computes granules().mine() micro-batches, forward and backward(),
// and then calls update(), on any number of ranks with the same bits: what the module's operators draw in training
// passes and in backward() comes from generators that begin at a function of FullyShardOptions::seed, the step and the
// granule. Torch's own generators stay where they are, also for whatever is drawn elsewhere; on the CPU ranks that are
// threads do not disturb each other there. That much is the program's: libtorch's products depend on how many threads
// they have, so every number of ranks is launched with the same LaunchOptions::threads; and a granule has the same
// samples, in a batch of the same shape.
//
// Thread safety: none; it belongs to its rank's thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <concepts>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/shard/fully_shard.hpp"
#include "tessera/shard/initial.hpp"
#include "tessera/torch/units.hpp"

#pragma GCC visibility push(default)

namespace tessera::torch {

// Options of the units whose names match a shell pattern ("*norm*"). Name, prefix, recompute, optional and apart
// are not for units of torch's.
struct UnitRule {
  std::string pattern;
  UnitOptions options;
};

struct ModuleOptions {
  Units units = children_of("");
  // The first rule that matches a unit is its. A batch norm in bf16_mixed needs {.precision = fp32_precision}: torch
  // keeps its moments in fp32.
  std::vector<UnitRule> per_unit = {};
  // Shell patterns over parameters' names. One that matches may get no gradient in a backward pass; it then counts as
  // zero. For any other that is an error.
  std::vector<std::string> may_be_unused = {};
  // Shell patterns over buffers' names, where the model has granules. A training pass may write to one that matches,
  // which then follows the granules that this rank computes, and so depends on the number of ranks: a batch norm's
  // running moments and number of batches. For any other that is an error. Each step's first granule is looked at.
  std::vector<std::string> own_buffers = {};
  // In place of the module's own values of parameters: each rank fills its shard by this and FullyShardOptions::seed
  // (initial.hpp). The module may be one of shapes (deferred.hpp), of which no parameter is computed then; its buffers
  // keep their values.
  std::function<Initial(const std::string& name, at::IntArrayRef sizes)> initial = {};
};

// ShardedModule is what FullyShard does for any torch module, without knowing its class.
class ShardedModule {
 public:
  ShardedModule(World& world, std::shared_ptr<::torch::nn::Module> module, ModuleOptions module_options,
                FullyShardOptions options);
  ShardedModule(const ShardedModule&) = delete;
  ShardedModule& operator=(const ShardedModule&) = delete;
  // The module's parameters are empty tensors from then on, and its buffers its own again.
  ~ShardedModule();

  // Runs `forward_pass`, a forward pass of one micro-batch with any example, on the module's own memory, and takes the
  // order in which it uses units for the program; buffers and torch's generators are then as they were. Of a deferred
  // module the example is one of shapes, too (torch::kMeta). Before finalize(). Not collective, but every rank must
  // learn the same. Without it units are a chain in the order of their declaration, and a step that goes through them
  // otherwise is slower and holds all gradients whole until its backward pass ends, where a plan for its order as well
  // is made (as recompile() does); all ranks do the same. Not with outer steps, nor behind the first granule of a step:
  // that is a UsageError.
  void learn(const std::function<void()>& forward_pass);

  // Does what tessera::FullyShard::finalize() does; then the module's own values, those of rank 0, become everybody's,
  // and its memory is freed; or what was deferred (deferred.hpp) is computed there. Parameters with requires_grad() ==
  // false are frozen. Where that changes between steps, on every rank, the next pass makes the plan anew (as
  // recompile() does).
  void finalize(std::unique_ptr<Optimizer> optimizer);

  // The backward pass of what the passes since the last one computed: in place of loss.backward(), which is an error.
  // `loss` is this rank's, a scalar: the runtime averages over ranks and micro-batches, or over granules. Where it
  // comes through passes of other models as well (a generator's through its discriminator), those get gradients, too,
  // which their update() or zero_grad() takes.
  void backward(const at::Tensor& loss);
  // Drops what backward() brought since the last update(), as torch's optimizers do by this name, and a forward pass
  // that has had no backward(). One whose loss is gone by the next forward pass (`if (!isfinite(loss)) continue;`) is
  // dropped by itself: with one micro-batch a step on every rank, with several it counts as a gradient of zero.
  // Collective.
  void zero_grad();

  // These are tessera::FullyShard's: with a weight, or weights of granules, `loss` is the sum over the samples that it
  // counts, not their mean; a rank whose data has ended takes part with nothing, until all have.
  void update();
  void update(float learning_rate);
  void update(const UpdateOptions& options);
  void skip_step();
  void skip_step(float learning_rate);
  bool finished();
  StepReport last_step();
  Granules granules();  // a step's micro-batches are these of this rank; a total of 0 without granules

  // The model's values, whole, into a plain module with tensors of the same names and shapes, for torch::save() or a
  // process without ranks: null on ranks that want none. Throws UsageError for a tensor that it lacks. Collective;
  // synchronises; between steps.
  void copy_to(::torch::nn::Module* plain);

  // The most that torch's tensors took at once on this rank between the beginning of a forward pass and the end of its
  // backward pass, in all of them so far, beyond what they took in the beginning: what autograd keeps and what comes
  // and goes. On the CPU tensors of this thread, on CUDA those of the device. Parameters, gradients and states are the
  // plan's (plan/memory.hpp).
  Bytes peak_activations() const;

  // The runtime below, for what it offers between steps: checkpoints, hooks, norms, traces. Windows are this class's.
  tessera::FullyShard& sharded();
  // Returns the runtime's parameter, by its name in the module. Throws UsageError.
  const Parameter& parameter(std::string_view name) const;

 protected:
  void begin_pass();
  void end_pass();
  void leave_pass() noexcept;  // the same for a destructor: what end_pass() might throw, the next call does
  void fail_pass() noexcept;   // the same where an exception ends it
  void note_use(const at::Tensor& tensor);  // inside a pass: of another stream of torch's, on a CUDA device
  // Inside a catch block: aborts the world with the current exception as cause, and throws it on; one of libtorch's
  // says in which unit it came, and has no backtrace.
  [[noreturn]] void give_up();

 private:
  class [[gnu::visibility("hidden")]] Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// A pass is a stretch of the program in which parameters may be used: forward(), pass(), and `model->…` to the end of
// its full expression. Under torch::NoGradGuard it is an evaluation pass, between steps or, at a cost, inside one. One
// inside another of the same model is part of that, which ends with the outer one, or with backward(), update() and
// whatever else comes between passes. In an evaluation pass one with gradients is a UsageError.
template <std::derived_from<::torch::nn::Module> Net>
class FullyShard : public ShardedModule {
 public:
  explicit FullyShard(World& world, std::shared_ptr<Net> net, ModuleOptions module_options = {},
                      FullyShardOptions options = {})
      : ShardedModule(world, net, std::move(module_options), std::move(options)), net_(std::move(net)) {}

  // The module's forward(). An exception inside aborts the world with its text as the cause, and is rethrown.
  template <typename... Args>
  decltype(auto) forward(Args&&... args) {
    return pass([&](Net& net) -> decltype(auto) {
      (note_argument(args), ...);
      return net.forward(std::forward<Args>(args)...);
    });
  }
  // Whatever `body(net)` computes with the module: several of its functions, or its parameters.
  template <typename Body>
  std::invoke_result_t<Body, Net&> pass(Body&& body) {
    using Result = std::invoke_result_t<Body, Net&>;
    begin_pass();
    try {
      if constexpr (std::is_void_v<Result>) {
        std::forward<Body>(body)(*net_);
        end_pass();
      } else {
        Result result = std::forward<Body>(body)(*net_);
        end_pass();
        return std::forward<Result>(result);
      }
    } catch (...) {
      give_up();
    }
  }

  // Ends with the full expression that it is part of. Where an exception ends it, other ranks are told that one did,
  // but not its text, which nobody has by then; whoever catches it here and goes on gets a UsageError, if a unit's
  // parameters were used before it came.
  class Pass {
   public:
    explicit Pass(FullyShard& model) : model_(model) { model_.begin_pass(); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    ~Pass() { std::uncaught_exceptions() == exceptions_ ? model_.leave_pass() : model_.fail_pass(); }
    Net* operator->() const { return model_.net_.get(); }
    Net& operator*() const { return *model_.net_; }

   private:
    FullyShard& model_;
    int exceptions_ = std::uncaught_exceptions();
  };
  Pass operator->() { return Pass(*this); }

 private:
  template <typename T>
  void note_argument(const T& argument) {
    if constexpr (std::is_convertible_v<const T&, const at::Tensor&>) note_use(argument);
  }

  std::shared_ptr<Net> net_;
};

}  // namespace tessera::torch

#pragma GCC visibility pop
