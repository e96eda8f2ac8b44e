// A model between two steps: what its ranks hold of parameters and states, norms, scalars, traces and memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/kernels/step_scalars.hpp"
#include "tessera/shard/pieces.hpp"
#include "tessera/shard/steps.hpp"
#include "tessera/shard/trace.hpp"

#pragma GCC visibility push(default)

namespace tessera {

struct GradientNorm {
  const Parameter* parameter;
  double norm;  // of the mean gradient (StepReport::weight), the loss scale taken out; before clipping
};

class ModelInspection : public ModelSteps {
 public:
  // This rank's share of a unit, in fp32, parameter by parameter (plan/layout). For inspection, saving and loading.
  // Only between steps. Synchronises. `state` is "master", one of the optimizer's states, or "gradient": what the last
  // step reduced, divided and times its loss scale as hooks see it. With outer steps also "anchor", the masters after
  // the last one, and "outer momentum", of which each rank has 1/N. Frozen parameters have a master alone. On a CUDA
  // device the values are its memory, as buffer()'s are: kernels::copy takes them to the host, and whole() a whole
  // parameter. Only where masters are bf16 (Precision::masters), and where a rank that trains by itself keeps its
  // gradient in 16 bits (Optimizer::widens()), they are a copy in the host's memory, renewed by the next such call. A
  // state that has another type, or a value for several elements, is refused.
  std::vector<ParameterPiece> pieces(const Unit& unit, std::string_view state = "master");
  // The same in the state's own type, of all but "gradient".
  std::vector<StatePiece> state_pieces(const Unit& unit, std::string_view state);
  // Masters of 16 bits become the copy that pieces() gave of them, after it was written to, rounded to nearest. Does
  // nothing where pieces() are the masters themselves. Synchronises.
  void round_masters(const Unit& unit);
  // Call after writing to pieces() of masters or states: makes what is whole follow. The anchor of outer steps stays as
  // it is, unless it is written, too. Collective.
  void shards_changed();

  // One whole parameter, or its state, on every rank, in host memory: the model is never whole on any. Of slices that
  // is the tensor that they are cut from. Where ranks have roles, any role's parameter may be asked for, by all ranks:
  // every one has made them all. Only between steps. Collective; synchronises.
  std::vector<float> whole(const Parameter& parameter, std::string_view state = "master");
  // Returns the norm of every parameter that the program trains, of its last step, in the order of roles, units and
  // parameters, of tied ones once; the same bits for every strategy. After update() and before the next window.
  // Collective; synchronises.
  std::vector<GradientNorm> gradient_norms();

  // A buffer's values, between steps. Synchronises. Every rank has its own until synchronize_buffers(), which gives
  // everybody rank 0's. Collective.
  std::span<float> buffer(const Buffer& buffer);
  void synchronize_buffers();
  // `refresh` is called first by both, and so by what saves: an adapter whose modules keep buffers of their own, of
  // other types, say, writes there what they hold. It must not call these itself.
  void refresh_buffers_with(std::function<void()> refresh);

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
  // `program`: by its place in plan().programs; default: the one that was begun last. Setting is collective, and throws
  // CommunicationError where ranks that take their steps together give different ones.
  kernels::StepScalars step_scalars(std::optional<std::size_t> program = std::nullopt);
  void set_step_scalars(const kernels::StepScalars& scalars, std::optional<std::size_t> program = std::nullopt);
  // For each unit and parameter of it, StepScalars::step when its optimizer's states began, at zero
  // (OptimizerGroup::begun): of what was trained from the start 0. For those that load states from elsewhere. Only
  // between steps; setting synchronises, and is collective as that of the scalars.
  std::vector<std::vector<std::int64_t>> states_begun() const;
  void set_states_begun(const std::vector<std::vector<std::int64_t>>& begun);

  // Measures the operations of some steps to come (trace.hpp): takes the memory for it now, so that the steps allocate
  // nothing, and changes no bit. One trace at a time: a new one ends an earlier one, and so does recompile(). The same
  // on every rank; only between steps. Synchronises. Throws UsageError for steps that are over or that end before they
  // begin, and for more than 65,536.
  Trace trace(TraceSteps steps);

  // A line per unit: the types of parameters, gradients and wire, as they were resolved; and where sums are formed.
  std::string types_table() const;

  // Every category that has bytes.
  std::vector<MemoryRegion> regions() const;

 protected:
  using ModelSteps::ModelSteps;
};

}  // namespace tessera

#pragma GCC visibility pop
