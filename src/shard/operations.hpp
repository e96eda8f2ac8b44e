// Each kind of operation is done here on its stream. Addresses and sizes come from the operation's own ranges; waits
// and events are the executor's.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shard/loss_scaling.hpp"
#include "shard/model_memory.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/optimizer.hpp"
#include "tessera/kernels/rounding.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/plan/roles.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/optimizer.hpp"
#include "tessera/shard/options.hpp"
#include "tessera/shard/pieces.hpp"
#include "tessera/shard/unit.hpp"
#include "tessera/shard/whole_tensors.hpp"

namespace tessera {

// A plan runs with these. All of it outlives the run.
struct ExecutorInput {
  World& world;
  const plan::Plan& plan;
  std::span<const std::unique_ptr<Unit>> units;
  const std::map<const Module*, Unit*>& modules;  // that were added as units
  std::span<const Optimizer* const> optimizers;   // by program
  std::uint64_t seed;
  Diagnostics diagnostics;
  std::optional<void*> cuda_stream;   // to compute on; none: a new one
  const std::filesystem::path& disk;  // the folder of what stands on disk
  kernels::LossScaling loss_scaling;
  kernels::OuterSettings outer;                // read by plans with outer steps
  const GradientHook& gradient_hook;           // empty: none
  std::span<const plan::RankRole> roles = {};  // all of the job's, the plan's among them; empty: it is the only one
};

class Operations {
 public:
  // Makes the communicators. Collective.
  Operations(const ExecutorInput& input, ModelMemory& memory);

  // Sets this step, for the operations of its update. `asked`: the learning rate, or none where gradients are dropped.
  // Granules without a weight weigh nothing.
  void set_step(std::size_t program, std::optional<float> asked, const kernels::StepPart& part,
                std::span<const double> granule_weights);
  // Sets the rate of what begins ahead of the next norm (Offload::ahead); none: the optimizer's own.
  void expect(std::optional<float> learning_rate) { expected_rate_ = learning_rate; }
  std::optional<float> expected() const { return expected_rate_; }
  // A communicator for each stream and group that the plan uses. Collective. The rank's streams are there before:
  // making one takes memory of the device, which may wait for a peer's collective there that waits for this rank.
  void make_communicators(World& world);

  // OptimizerGroup::begun of a unit's parameters; 0 at the start. No update may be on its way.
  const std::vector<std::int64_t>& begun(std::size_t unit) const { return begun_[unit]; }
  void set_begun(std::size_t unit, std::vector<std::int64_t> begun);

  // Enqueues one that is no window.
  void launch(plan::EventPoint point, Stream& on);
  // Whether nobody sees a step's scalars before they are brought to the host; and that they were.
  bool looks_late() const { return !tasks_see_memory_; }
  void look_at(std::size_t program, const kernels::StepScalars& now);

 private:
  // A collective is called with these, made once: communicators keep views of groups.
  struct Call {
    std::vector<AllGather> gathers;
    std::vector<ReduceScatter> reductions;
    kernels::Target rounded{};  // in a window: from the sum, where that is of 16 bits
    std::vector<Transfer> transfers{};
  };
  // Tensors of one shape that this rank owns for a moment of each update (plan/whole.hpp), one behind the other.
  struct OwnedTensors {
    const WholeTensors* optimizer;  // their units'
    std::vector<std::vector<kernels::Target>> planes{};
    std::vector<WholeTensor> tensors{};
  };
  // A stretch of a unit is updated at once: all that the rank updates, or, of masters that have to be widened, as much
  // as there is room for.
  struct Stretch {
    std::size_t first;  // element of what the rank updates
    std::size_t count;
    std::vector<OptimizerRun> runs;             // counted from `first`
    std::vector<float*> states;                 // of the stretch, then of each run
    std::unique_ptr<UnitUpdate> update;         // null: run by run
    std::vector<kernels::RoundedSpans> rounds;  // of widened masters: back to where they stand
  };
  // An update of a unit takes these of the step.
  struct StepOf {
    float learning_rate;  // of the unit
    const kernels::StepScalars* scalars;
  };
  using FillValues = std::function<void(std::span<float> values)>;

  Communicator& communicator_of(const plan::Operation& operation) {
    return *communicators_[static_cast<std::size_t>(operation.stream)].at(operation.group.bits());
  }
  Call call_of(const plan::Operation& operation, bool evaluates);
  Call call_in_window(const plan::Operation& operation);
  void collect(const plan::Operation& operation, const Call& call, Stream& on);
  void pass_message(const plan::Operation& operation, Stream& on);
  void set_anchor(std::size_t unit, Stream& on);
  void fill_initial(const kernels::Target& to, std::size_t count, const FillValues& fill, Stream& on);
  void fill_slice(std::size_t unit, const plan::ParameterSpec& spec, const StatePiece& piece,
                  std::span<float> values) const;
  void initialize(const plan::Operation& operation, Stream& on);
  void cast(const plan::Operation& operation, Stream& on);
  void prepare_gradient(const plan::Operation& operation, Stream& on);
  void accumulate(const plan::Operation& operation, Stream& on);
  std::size_t counted_elements(std::size_t unit, std::size_t elements) const;
  void sum_of_squares(const plan::Operation& operation, Stream& on);
  void hook(const plan::Operation& operation, Stream& on);
  void broadcast(const plan::Operation& operation, Stream& on);
  void sum_tied(const plan::Operation& operation, Stream& on);
  void gather_norms(const plan::Operation& operation, Call& call, Stream& on);
  void initialize_scalars(const plan::Operation& operation, Stream& on);
  void write_weight(const plan::Operation& operation, Stream& on);
  void note_parts(Stream& on);
  void begin_update(std::size_t program, Stream& on);
  void suppose(const plan::Operation& operation, std::size_t program, Stream& on);
  void keep(const plan::Operation& operation);
  void round_again(const plan::Operation& operation, Stream& on);
  void settle(const plan::Operation& operation, Stream& on);
  [[noreturn]] void refuse(const plan::Operation& operation, const StepOf& step, float supposed) const;
  Stretch stretch_of(std::size_t unit, std::span<const OptimizerRun> runs, std::size_t first, std::size_t count);
  std::vector<kernels::RoundedSpans> rounds_of(std::size_t unit, std::size_t first, std::size_t count);
  // Calls update(stretch, its masters in fp32) for each.
  template <typename Update>
  void for_each_stretch(const plan::Operation& operation, Stream& on, const Update& update);
  void optimize(const plan::Operation& operation, const StepOf& step, Stream& on);
  void update_runs(std::size_t unit, const Stretch& stretch, const OptimizerSpans& all, const StepOf& step, Stream& on);
  // Calls work(stream): with that of the operation, or, where the host's processors are to do it beside a CUDA device,
  // in a task of it and with one of the CPU.
  template <typename Work>
  void compute(const plan::Operation& operation, Stream& on, const Work& work);
  // Calls work(stream of the CPU) in a task of `on`, which sees what is in the host's memory by then.
  template <typename Work>
  void in_task(Stream& on, const Work& work);
  void find_owned_tensors();
  void redistribute(const plan::Operation& operation, const Call& call, Stream& on);
  void transform(const plan::Operation& operation, Stream& on);
  void apply(const plan::Operation& operation, Stream& on);
  const Optimizer& optimizer_of(std::size_t unit) const {
    const Optimizer* const own = units_[unit]->options().optimizer.get();
    return own != nullptr ? *own : *optimizers_[plan_.trainers[unit]];
  }
  float learning_rate_of(std::size_t unit, float asked) const;
  StepOf step_of(const plan::Operation& operation);
  bool has_own_decays(std::size_t unit) const;
  void outer_update(const plan::Operation& operation, Stream& on);
  void release(const plan::Operation& operation, Stream& on);
  void transfer(const plan::Operation& operation, Stream& on);
  // Between the disk and the device's memory, where the stream's tasks run.
  void visit_disk(const plan::Range& from, const plan::Range& to, Stream& on);

  kernels::StepScalars* scalars_at(const plan::Operation& operation) {
    return scalars_at(operation, is_supposed(operation)                     ? plan::Role::supposed
                                 : operation.stream == plan::StreamId::host ? plan::Role::host_scalars
                                                                            : plan::Role::scalars);
  }
  kernels::StepScalars* scalars_at(const plan::Operation& operation, plan::Role role) {
    return reinterpret_cast<kernels::StepScalars*>(address(operation.operand(role).range));
  }
  // Whether it is an update ahead of the norm, or what it supposes.
  static bool is_supposed(const plan::Operation& operation);
  kernels::Source source(const plan::Access& access);
  kernels::Target target(const plan::Access& access);
  float* floats(const plan::Access& access);
  std::size_t elements(const plan::Access& access) const;
  std::byte* address(const plan::Range& range) { return memory_.address(range); }
  std::byte* base(std::size_t buffer) { return memory_.base(buffer); }

  const plan::Plan& plan_;
  std::span<const std::unique_ptr<Unit>> units_;
  std::span<const Optimizer* const> optimizers_;  // by program
  std::size_t rank_;
  std::uint64_t seed_;
  bool poison_;
  kernels::LossScaling loss_scaling_;
  kernels::OuterSettings outer_;
  std::vector<std::vector<std::int64_t>> begun_;  // OptimizerGroup's, by unit and parameter
  const GradientHook& gradient_hook_;
  ModelMemory& memory_;
  std::span<const plan::RankRole> roles_;
  std::vector<std::string> evaluated_;                        // labels, by unit
  std::vector<std::vector<Call>> calls_;                      // by segment and operation
  std::vector<std::vector<Stretch>> stretches_;               // by unit
  std::vector<std::vector<ParameterPiece>> gradient_pieces_;  // by unit, for hooks
  std::vector<std::vector<kernels::Target>> directions_;      // by unit: one for each plane, of the run at hand
  std::vector<std::vector<OwnedTensors>> owned_tensors_;      // by group of whole tensors
  // The communicators that the plan uses stand by stream and bits of the group. Those of one stream share their
  // staging.
  std::array<std::map<unsigned, std::unique_ptr<Communicator>>, plan::stream_count> communicators_;
  std::unique_ptr<Communicator> tied_;  // between the first role and the last
  // Messages between roles: by the place of the first neighbour, even or odd, and by direction, forward and backward.
  std::array<std::array<std::unique_ptr<Communicator>, 2>, 3> links_;
  std::vector<SkippedSteps> skipped_steps_;  // by program
  bool tasks_see_memory_;                    // of the device: on the CPU
  Stream on_host_;                           // immediate: runs in a task of the stream of the host's processors
  std::atomic<bool> norms_arrived_ = false;  // of all ranks, for the update that comes next
  std::size_t program_ = 0;                  // of the update that is launched
  std::optional<float> learning_rate_ = 0.0f;
  std::optional<float> expected_rate_;
  std::vector<float> supposed_rates_;   // by unit: of the latest update ahead of the norm
  std::vector<double> heaviest_steps_;  // by program: the largest weight of all ranks' parts so far
  kernels::StepPart part_;
  std::vector<double> granule_weights_;
  // Labels of the latest gathers of norms, of which an update has two where roles share them: the host is at most one
  // update ahead of the streams.
  using NormLabel = std::array<char, 112>;
  std::array<NormLabel, 6> norm_labels_{};
  std::size_t next_norm_label_ = 0;
};

}  // namespace tessera
