// The runtime of one model: it flattens and shards the units' parameters, gradients and optimizer state over the ranks
// of a world, and runs the verified plan of a training step around the user's windows. Strategy ddp is a plan like any
// other.
//
// Life: construct → add units → finalize → windows and updates. A call out of place is a UsageError.
// Thread safety: none; one FullyShard belongs to its rank's thread. Allocates nothing once every segment has run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/comm/world.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/plan/strategy.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/optimizer.hpp"
#include "tessera/shard/parameter.hpp"
#include "tessera/shard/pieces.hpp"
#include "tessera/shard/trace.hpp"
#include "tessera/shard/training_program.hpp"
#include "tessera/shard/unit.hpp"
#include "tessera/shard/window.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// Test modes. None of them changes a bit of the results.
struct Diagnostics {
  std::optional<std::uint64_t> delay_seed = std::nullopt;  // random delays on every queued stream
  bool poison = false;                                     // freed slots are filled with NaN
  bool touch = false;          // every operation touches the ends of the ranges that it declares, for sanitizers
  bool queue_compute = false;  // CPU: the compute stream is a queue, so the host runs ahead as it does with CUDA
};

// Rare synchronisation (DiLoCo, Douillard et al. 2023): replicas train each by themselves, and after every so many
// updates SGD with Nesterov's momentum takes them all from the weights that they had in common towards the mean of what
// they have become (numerics.md). Learning rate 1 and momentum 0: to the mean, which is local SGD.
struct OuterOptions {
  std::size_t every = 0;  // updates; 0: there is none of this, and replicas are summed in every step
  float learning_rate = 0.7f;
  float momentum = 0.9f;      // in [0, 1)
  std::size_t fragments = 1;  // runs of units that take turns, so that less travels at a time
};

struct FullyShardOptions {
  // These change results or memory.
  Strategy strategy = Strategy::fsdp;
  // Instead of the strategy's: whom each rank shares parameters, summed gradients and the optimizer's states with. Of
  // the first two it keeps as much as of the last, or more. The bits are those of every strategy on the same mesh.
  std::optional<Sharding> sharding = std::nullopt;
  // R of the mesh of R replicas by S ranks; divides the number of ranks. Gradients are summed inside each replica and
  // then across them, whatever the strategy (numerics.md); hsdp and hfsdp keep the model once in each.
  std::size_t replicas = 1;
  // With it, everything that a step reports or shows is this rank's replica's: norms, loss scale, skipped steps,
  // pieces(), whole(). Not with hfsdp, and without checkpoints.
  OuterOptions outer = {};
  Precision precision = fp32_precision;
  std::size_t micro_batches = 1;  // of a step; ProgramOptions may differ
  AccumulationMode accumulation = AccumulationMode::automatic;
  std::uint64_t seed = 0;  // of the initial values
  // Default: dynamic, from 65536, when gradients of any unit are fp16, frozen now or not; else the loss is not scaled.
  std::optional<kernels::LossScaling> loss_scaling = std::nullopt;

  // These change memory and speed only. The first two are for parameters that are gathered: of fsdp,
  // hsdp and hfsdp.
  std::size_t prefetch = 1;  // units gathered ahead of the window that computes
  // false: units stay whole from forward to backward; Extent::group: a replica's share of them does (Resharding).
  Resharding reshard_after_forward = true;
  bool overlap_reduction = true;  // a second gradient slot, so that a reduction runs beside the next backward window
  // Gradients of at most so many bytes, in the type in which they travel, are reduced in one operation, so that small
  // units share a synchronisation; a larger unit's alone, never split. 0: each unit's alone. Default: 1 MiB; 0 for
  // fsdp, where merging keeps more gradients alive at once.
  std::optional<Bytes> bucket_cap = std::nullopt;
  // The program by numbers; default: Program::chain. By units, and for several: FullyShard::add_program().
  std::optional<plan::Program> program = std::nullopt;

  // Bytes of the arena that belong to the user's layers: FullyShard::activation_memory().
  Bytes activations{};
  Checkpointing checkpointing = Checkpointing::none;  // what a Checkpointer (checkpoint/checkpointer.hpp) needs

  std::optional<Bytes> memory_limit =
      std::nullopt;  // finalize() refuses a plan whose arena is larger, and names a setting that fits
  Diagnostics diagnostics = {};
};

// A StepReport is what one update did. Reading it synchronises with the update. When 32 updates in a row were skipped,
// rank 0 warns.
struct StepReport {
  double gradient_norm;  // global, of the mean over what all ranks brought, before clipping
  bool skipped;          // the norm was not finite, or weights were too small: no parameter changed
  std::int64_t updates;  // applied so far
  std::int64_t skipped_updates;
  float loss_scale;  // of the next step
  // The mean was over this much, of all ranks: the sum of their weights, or how many micro-batches they computed. 0:
  // nothing changed, and no count.
  double weight;
  bool finished;  // every rank skipped the step (skip_step())
};

// These differ from step to step.
struct UpdateOptions {
  // In place of the optimizer's: finite, at least 0, and the same on every rank.
  std::optional<float> learning_rate = std::nullopt;
  // The weight is that of this rank's samples in all micro-batches of the step, in any unit (samples, tokens): finite,
  // at least 0. With it the step is by the exact mean over the samples of all ranks: backward windows write the sum
  // over the rank's samples of each sample's weight times its gradient, not a mean, and the update divides what all
  // ranks wrote by the sum of their weights. A factor that both carry cancels: whoever takes means over batches of 32,
  // and in a last batch of 20 their sum over 32, gives the weights 1 and 20/32. All ranks give one, but those that skip
  // the step, or none does. Not with outer steps.
  std::optional<double> weight = std::nullopt;
};

// A hook on reduced gradients gets this. The hook runs once per step and unit that trains, after the last reduction and
// before norm and clipping; whatever it writes counts. Nothing may outlive the call but work enqueued on `stream`,
// which must not look at host memory that changes.
struct ReducedGradient {
  const Unit& unit;
  // This rank's shard: the sum over ranks and micro-batches divided by how many these are by the options, times
  // loss_scale. What ranks brought other than that (weights, fewer micro-batches, nothing) is put right in the update.
  std::span<const ParameterPiece> pieces;
  const float* loss_scale;  // in the device's memory
  Stream& stream;
};

struct GradientNorm {
  const Parameter* parameter;
  double norm;  // of the mean gradient (StepReport::weight), the loss scale taken out; before clipping
};

class FullyShard {
 public:
  // The World ends last: a model that is used after it is a UsageError.
  explicit FullyShard(World& world, FullyShardOptions options = {});
  FullyShard(const FullyShard&) = delete;
  FullyShard& operator=(const FullyShard&) = delete;
  ~FullyShard();  // waits for its own streams; never communicates

  // One unit per call, in the order of use. Default name: "units.N". The module must keep its address. Names are
  // unique.
  Unit& add(Module& module, std::string_view name = {});
  Unit& add(Module& module, UnitOptions options);
  // The layer below modules: named parameters, and windows opened by hand or with a callback.
  Unit& add_unit(UnitOptions options, std::span<const NamedParameter> parameters,
                 std::span<const NamedBuffer> buffers = {}, std::span<const NamedExchange> exchanges = {});
  Unit& add_unit(std::string_view name, std::span<const NamedParameter> parameters);

  // Says what a step is, where it is not every unit forward and then backward in reverse; called more than once, a
  // model has several kinds of steps. Before finalize(), after the units were added; the same on every rank.
  TrainingProgram& add_program(ProgramOptions options);
  // The windows, updates and evaluations that follow are this program's, until another begins, and so are what is asked
  // about steps: last_step(), finished(), loss_scale(), gradient_norms(), step_scalars(), trace(). At the start the
  // first one's. Only between steps; every rank the same. Throws UsageError inside a step, and for another model's.
  void begin(const TrainingProgram& program);

  // Called for every unit that trains, once per step. Before finalize(); the same on every rank; a later one takes the
  // place of an earlier one. What it throws aborts the world.
  void on_reduced_gradient(std::function<void(const ReducedGradient&)> hook);

  // Makes layout and plan, verifies the plan, compares its hash across ranks, takes the arena, fills this rank's share
  // of the initial values. Collective; synchronises. Throws UsageError, MemoryError, or CommunicationError when ranks
  // differ. The optimizer is that of all programs that bring none of their own; where each does, none is needed.
  void finalize(std::unique_ptr<Optimizer> optimizer = nullptr);

  // Makes a new plan after Parameter::set_frozen() changed what is trained. Weights, buffers, step count and loss scale
  // stay, and so do the optimizer's states of what was trained and still is; of what starts to be trained they are
  // zero. Only between steps. Collective; synchronises. While it runs, the rank holds its share of the old state twice.
  // Spans and pointers taken before are invalid. What is refused by UsageError, CommunicationError or the memory limit
  // leaves all as it was; where memory or a rank fails later, the values are gone, and every other call says so.
  void recompile();

  // Opens the module's next window, calls module.forward(window, args…), closes the window, returns what it returned.
  // `kind`: forward, recompute or evaluate; UsageError for backward, and for recompute of a unit that does so by its
  // setting. A pass that is written once for all three takes a Pass (below) in place of the model.
  template <typename M, typename... Args>
  decltype(auto) pass(plan::WindowKind kind, M& module, Args&&... args) {
    Unit& unit = unit_of(module);
    require_forward(unit, kind);
    return open(unit, kind).run_forward(module, std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) forward(M& module, Args&&... args) {
    return pass(plan::WindowKind::forward, module, std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) recompute(M& module, Args&&... args) {
    return pass(plan::WindowKind::recompute, module, std::forward<Args>(args)...);
  }
  template <typename M, typename... Args>
  decltype(auto) evaluate(M& module, Args&&... args) {
    return pass(plan::WindowKind::evaluate, module, std::forward<Args>(args)...);
  }
  // Calls module.backward(window, args…) in a backward window. For a unit that recomputes (UnitOptions::recompute) the
  // latest call of forward() that was not gone back through is made again before, in a recompute window.
  template <typename M, typename... Args>
  decltype(auto) backward(M& module, Args&&... args) {
    Unit& unit = unit_of(module);
    compute_again(unit);
    return within(unit, plan::WindowKind::backward, [&](Window& window) -> decltype(auto) {
      return module.backward(window, std::forward<Args>(args)...);
    });
  }

  // The next window of a unit that was added as optional, without computing: its gradient counts as zero in this
  // window. Ranks may differ in what they skip.
  void skip(Unit& unit, plan::WindowKind kind);
  void skip(const Module& module, plan::WindowKind kind) { skip(unit_of(module), kind); }

  // The callback form on a unit: opens, calls body(window), closes, returns what body returned. An exception inside
  // aborts the world and is rethrown.
  template <typename Body>
  std::invoke_result_t<Body, Window&> within(Unit& unit, plan::WindowKind kind, Body&& body) {
    return open(unit, kind).run(std::forward<Body>(body));
  }
  // The explicit form: the caller closes the window.
  Window open(Unit& unit, plan::WindowKind kind);

  // Reduces what is left, clips, updates, by the mean over what all ranks brought: every micro-batch counts the same,
  // or as the weights say. After the last window of a micro-batch, which may be an earlier one than the last: those
  // that are missing on this rank are skipped (they add zero, and their collectives happen), and do not count. Does not
  // synchronise (but waits for the update before the last one, so that the host is never more than a step ahead).
  // Ranks that differ in the learning rate all get a CommunicationError that names the rates; where replicas train by
  // themselves, ranks of one replica are compared. So do ranks of which some give a weight and others do not; with
  // CUDA from last_step() on, and until then nothing changes. Throws UsageError for a rate or weight out of range.
  void update();
  void update(float learning_rate);
  void update(const UpdateOptions& options);
  // The whole step of a rank whose data has ended: no windows, a gradient of zero, and weight 0 in the mean. The rank
  // takes part in every collective, and its share of the parameters is updated by what the others brought, at the
  // learning rate that they use. When all ranks skip a step, nothing changes: no parameter, state, count or loss scale.
  // Between steps. Synchronises as update() does. Throws UsageError with outer steps, in which replicas would lose
  // count of each other.
  void skip_step();
  void skip_step(float learning_rate);
  // In place of update(), on every rank: what the windows of this step brought is dropped, and no parameter, state,
  // count or loss scale changes. For a step that turns out to be of no use, or whose gradients are only looked at:
  // until the next window, pieces() and gradient_norms() show them, divided by ranks × micro-batches, as hooks see
  // them, which run here, too. A rank that has computed nothing may call it. Synchronises as update() does. Ranks of
  // which some call it and others update get a CommunicationError. Throws UsageError inside a pass, and with outer
  // steps.
  void discard_gradients();
  // Whether every rank skipped the last step: nobody has more data. Synchronises as last_step() does.
  bool finished();

  // The compute stream. What the user enqueues between windows (losses, say) belongs here too.
  Stream& stream();
  // The current loss scale, a scalar in the device's memory, for work on stream(): what seeds the backward pass is
  // multiplied with it, here or in a window (Window::loss_scale).
  const float* loss_scale() const;
  StepReport last_step();  // synchronises the compute stream
  void synchronize();      // waits for every stream of this model; throws what failed there

  const plan::Plan& plan() const;
  const FullyShardOptions& options() const;
  World& world();
  std::size_t unit_count() const;
  Unit& unit(std::size_t index);  // in the order of add()
  const Unit& unit(std::size_t index) const;

  // This rank's share of a unit, in fp32, parameter by parameter (plan/layout). For inspection, saving and loading.
  // Only between steps. Synchronises. `state` is "master", one of the optimizer's states, or "gradient": what the last
  // step reduced, divided and times its loss scale as hooks see it. With outer steps also "anchor", the masters after
  // the last one, and "outer momentum", of which each rank has 1/N. Frozen parameters have a master alone. On a CUDA
  // device the values are its memory, as buffer()'s are: kernels::copy takes them to the host, and whole() a whole
  // parameter. Only where a rank that trains by itself keeps its gradient in 16 bits (Optimizer::widens()), that of
  // "gradient" is a copy in the host's memory, renewed by the next such call.
  std::vector<ParameterPiece> pieces(const Unit& unit, std::string_view state = "master");
  // Call after writing to pieces() of masters or states: makes what is whole follow. The anchor of outer steps stays as
  // it is, unless it is written, too. Collective.
  void shards_changed();

  // One whole parameter, or its state, on every rank, in host memory: the model is never whole on any. Only between
  // steps. Collective; synchronises.
  std::vector<float> whole(const Parameter& parameter, std::string_view state = "master");
  // Returns the norm of every parameter that the program trains, of its last step, in the order of units and
  // parameters; the same bits for every strategy. After update() and before the next window. Collective; synchronises.
  std::vector<GradientNorm> gradient_norms();

  // A buffer's values, between steps. Synchronises. Every rank has its own until synchronize_buffers(), which gives
  // everybody rank 0's. Collective.
  std::span<float> buffer(const Buffer& buffer);
  void synchronize_buffers();

  // The block of FullyShardOptions::activations bytes, page-aligned, at one address until recompile(). Empty when none
  // were asked for.
  std::span<std::byte> activation_memory();

  // The regions that FullyShardOptions::checkpointing asked for; what was not asked for is empty. At one address until
  // recompile().
  struct CheckpointMemory {
    std::span<std::byte> staging;  // plan::checkpoint_staging()
    std::span<std::byte> copy;     // plan::checkpoint_copy()
  };
  CheckpointMemory checkpoint_memory();
  // While the result lives, recompile() is refused with a UsageError that says `why`: work that goes on between steps
  // uses this plan's memory. The last one counts.
  [[nodiscard]] std::shared_ptr<const std::string> hold_plan(std::string why);

  // For what is built on the calls above and goes by a name of its own: throws UsageError that names `call` inside a
  // step.
  void require_between_steps(std::string_view call) const;

  // Updates carry these from step to step beside the shards: counts, the loss scale, powers of the decays. Only between
  // steps. Synchronises.
  // `program`: by its place in plan().programs; default: the one that was begun last.
  kernels::StepScalars step_scalars(std::optional<std::size_t> program = std::nullopt);
  void set_step_scalars(const kernels::StepScalars& scalars, std::optional<std::size_t> program = std::nullopt);

  // Measures the operations of some steps to come (trace.hpp): takes the memory for it now, so that the steps allocate
  // nothing, and changes no bit. One trace at a time: a new one ends an earlier one, and so does recompile(). The same
  // on every rank; only between steps. Synchronises. Throws UsageError for steps that are over or that end before they
  // begin, and for more than 65,536.
  Trace trace(TraceSteps steps);

  // A line per unit: the types of parameters, gradients and wire, as they were resolved; and where sums are formed.
  std::string types_table() const;

  // Bytes of the arena by category, with the addresses at which they stand, so that others can measure them.
  struct Region {
    plan::Category category;
    std::span<const std::byte> memory;
  };
  std::vector<Region> regions() const;

 private:
  Unit& unit_of(const Module& module);
  static void require_forward(const Unit& unit, plan::WindowKind kind);
  void compute_again(const Unit& unit);

  class [[gnu::visibility("hidden")]] Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// A forward pass calls its modules by this, so that training, evaluation and recomputation share one function:
//   const auto net = [&](const Pass& pass, const Values& x) -> const Values& { return pass(head, pass(body, x)); };
//   net({model, WindowKind::forward}, x);
//   net({model, WindowKind::evaluate}, x);
class Pass {
 public:
  // `kind`: as for FullyShard::pass. The model outlives it.
  Pass(FullyShard& model, plan::WindowKind kind) : model_(&model), kind_(kind) {}

  template <typename M, typename... Args>
  decltype(auto) operator()(M& module, Args&&... args) const {
    return model_->pass(kind_, module, std::forward<Args>(args)...);
  }
  plan::WindowKind kind() const { return kind_; }
  FullyShard& model() const { return *model_; }

 private:
  FullyShard* model_;
  plan::WindowKind kind_;
};

}  // namespace tessera

#pragma GCC visibility pop
