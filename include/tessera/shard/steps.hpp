// A model as it trains: the windows of its passes, and what ends a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "tessera/device/stream.hpp"
#include "tessera/plan/granules.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/shard/model.hpp"
#include "tessera/shard/window.hpp"

#pragma GCC visibility push(default)

namespace tessera {

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
  // In its place where the model has granules: one such weight for each granule that this rank has computed in this
  // step, in their order. They are added in the order of granules over all ranks.
  std::span<const double> granule_weights = {};
};

class ModelSteps : public ShardedModel {
 public:
  // The windows, updates and evaluations that follow are this program's, until another begins, and so are what is asked
  // about steps: last_step(), finished(), loss_scale(), gradient_norms(), step_scalars(), trace(). At the start the
  // first one's. Only between steps; every rank the same. Throws UsageError inside a step, and for another model's.
  void begin(const TrainingProgram& program);

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

  // Calls module.backward_input(window, args…) in a window that forms the gradient of the input alone, for schedules
  // that form those of parameters later, in backward().
  template <typename M, typename... Args>
  decltype(auto) backward_input(M& module, Args&&... args) {
    return within(unit_of(module), plan::WindowKind::backward_input, [&](Window& window) -> decltype(auto) {
      return module.backward_input(window, std::forward<Args>(args)...);
    });
  }

  // Where a program's windows are of several micro-batches by turns, as a pipeline's are: the calls that follow are of
  // the one that has this place among those on their way, whose latest call of forward() is made again. At first 0.
  void take_place(std::size_t place);

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
  // Says before a step's first backward window at which rate it will be updated, where the host's processors begin
  // ahead of the norm (Offload::ahead); of one step, and of no effect elsewhere. Where it is not said they suppose the
  // optimizer's own rate. An update at another rate has the same bits, and is made twice.
  void expect(float learning_rate);
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
  // How this rank takes part in the granules of a step (FullyShardOptions::granules) of the current program: the
  // micro-batches of its step are granules number(0), number(1), …, mine() of them, and then comes update(). Granules
  // stand in the order in which ranks own shards, which with several replicas is not that of rank numbers: read which
  // are this rank's here. A total of 0 where the model has none. After finalize().
  Granules granules() const;
  // Whether every rank skipped the last step: nobody has more data. Synchronises as last_step() does.
  bool finished();

  // The compute stream. What the user enqueues between windows (losses, say) belongs here too.
  Stream& stream();
  // The current loss scale, a scalar in the device's memory, for work on stream(): what seeds the backward pass is
  // multiplied with it, here or in a window (Window::loss_scale).
  const float* loss_scale() const;
  StepReport last_step();  // synchronises the compute stream
  void synchronize();      // waits for every stream of this model; throws what failed there

  // The block of FullyShardOptions::activations bytes, page-aligned, at one address until recompile(). Empty when none
  // were asked for.
  std::span<std::byte> activation_memory();

 protected:
  using ShardedModel::ShardedModel;

 private:
  Unit& unit_of(const Module& module);
  static void require_forward(const Unit& unit, plan::WindowKind kind);
  void compute_again(const Unit& unit);
};

}  // namespace tessera

#pragma GCC visibility pop
