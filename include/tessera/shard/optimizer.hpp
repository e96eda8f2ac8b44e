// The runtime needs to know this of an optimizer. AdamW and Sgd (optim/) are two; users may bring their own. An
// optimizer works elementwise on fp32 shards, so that every strategy gives the same bits; what cannot, because it has
// to see a tensor whole, says so (whole_tensors.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/device/stream.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/kernels/step_scalars.hpp"
#include "tessera/plan/state_spec.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// Parameters whose full names match get other settings than the rest. The first group that matches wins; what it does
// not set is the optimizer's own.
struct ParameterGroup {
  // Shell patterns over full names, as of fnmatch(3): "*.bias", "head.*", "blocks.[0-5].*". A group of which none
  // matches a parameter that the optimizer updates is a UsageError of finalize().
  std::vector<std::string> patterns;
  float learning_rate_scale = 1.0f;  // times the learning rate of the step
  std::optional<float> weight_decay = std::nullopt;
  // Adam's and AdamW's.
  std::optional<float> beta1 = std::nullopt;
  std::optional<float> beta2 = std::nullopt;
  std::optional<float> epsilon = std::nullopt;
};

// One contiguous run of a rank's flat shard in which every element has the same settings. Device memory.
struct OptimizerSpans {
  float* master;
  // One pointer per Optimizer::states(), to as many values as there are elements. Of an optimizer that types its states
  // (state_specs()), each points to values of the state's type; a run begins with a block. Null of a state that the
  // run's tensor has none of (plan::StateSpec::elementwise).
  std::span<float* const> states;
  // Reduced and averaged, not yet clipped: multiply with scalars->gradient_factor. fp32, but of an optimizer that
  // widens() the unit's own type where nothing is added to a rank's gradient.
  kernels::Source gradient;
  std::size_t count;
  // Windows read this of the run, where it is bf16 or fp16 and stands beside the masters: given to an optimizer that
  // rounds(), else null.
  kernels::Target parameters = {nullptr, DType::bf16};
};

struct OptimizerGroup {
  float learning_rate;  // of this step, the group's scale included
  float weight_decay;
  // The group may set these of its own.
  std::optional<float> beta1 = std::nullopt;
  std::optional<float> beta2 = std::nullopt;
  std::optional<float> epsilon = std::nullopt;
  // StepScalars::decay_power are of other decays than this optimizer's step_settings(): of its program's, where it is
  // that of some units alone.
  bool own_decays = false;
  // StepScalars::step when the states of this run began, at zero, as those of parameters that were thawed do. Below 0
  // where they are older than the count.
  std::int64_t begun = 0;

  friend bool operator==(const OptimizerGroup&, const OptimizerGroup&) = default;
};

// A run of what a rank keeps of a unit: parameter groups do not end where shards do.
struct OptimizerRun {
  std::size_t first;  // element
  std::size_t count;
  float learning_rate_scale;  // times the learning rate of the step
  OptimizerGroup group;       // all but that rate
  // The unit's parameter that it is of, where the optimizer sees that whole; none where update() does it all.
  std::optional<std::size_t> whole = std::nullopt;
};

class WholeTensors;

// Updates all runs of a unit at once (Optimizer::prepare()).
class UnitUpdate {
 public:
  virtual ~UnitUpdate() = default;

  // Does what Optimizer::update() does; `unit` begins with the first element of what the rank keeps. The learning rate
  // is the step's, before the runs' scales.
  virtual void update(Stream& stream, const OptimizerSpans& unit, float learning_rate,
                      const kernels::StepScalars* scalars) const = 0;
};

// For errors: one of an optimizer's own settings.
struct OptimizerSetting {
  std::string name;
  std::string value;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual std::string_view name() const = 0;
  // Names of the fp32 buffers of the parameters' size that it keeps; zero at the start. AdamW: {"m", "v"}. No two
  // alike, and none that FullyShard::pieces() has for something else.
  virtual std::vector<std::string> states() const = 0;
  // The same states with their types, for optimizers that keep other values than fp32 ones of each element (StateSpec).
  // Where some have blocks, no block is two ranks' or two parameters', whatever the strategy. Zero bytes at the start.
  virtual std::vector<plan::StateSpec> state_specs() const {
    const std::vector<std::string> names = states();
    return {names.begin(), names.end()};
  }
  virtual float learning_rate() const = 0;  // of a step that is given no other
  virtual float weight_decay() const = 0;   // of parameters whose group sets none
  virtual std::vector<ParameterGroup> groups() const { return {}; }
  // Settings beside those above, by which ranks are compared.
  virtual std::vector<OptimizerSetting> settings() const { return {}; }
  virtual kernels::StepSettings step_settings() const = 0;  // clipping and exponential decays

  // Whether update() writes OptimizerSpans::parameters, where it is not null: the new masters, rounded as by
  // kernels::cast(), which saves that another pass reads them. For one that does not, the runtime casts after it.
  virtual bool rounds() const { return false; }
  // Whether update() also takes gradients of 16 bits, exactly as if they had been cast to fp32 before. Where all of a
  // model's do, a rank that trains by itself, one micro-batch a step, keeps no fp32 copy of what windows wrote.
  virtual bool widens() const { return false; }
  // Enqueues the update of one run on `stream`. Must do nothing to memory when scalars->skip is set (a device
  // predicate: the host must not look). Does not synchronise, does not allocate. What it throws aborts the world.
  // Where the host's processors update (Offload::update), `stream` is one of the CPU and the memory is the host's;
  // ahead of the norm (Offload::ahead) the scalars' gradient_norm and weight are not those of the step.
  virtual void update(Stream& stream, const OptimizerSpans& spans, const OptimizerGroup& group,
                      const kernels::StepScalars* scalars) const = 0;
  // For optimizers that have less to launch when they know all runs of a unit: called once, and what it returns is
  // asked in every step in place of update(), for the same bits. Null: update() is called for each run.
  // Units of which it sees a tensor whole are not prepared.
  virtual std::unique_ptr<UnitUpdate> prepare(std::span<const OptimizerRun> /*runs*/) const { return nullptr; }
  // An optimizer that wants to see tensors whole says here what it does with them. It lives as long as the optimizer.
  // One that wraps another has to give out what the wrapped one does, with its own states, or to refuse such.
  virtual const WholeTensors* whole_tensors() const { return nullptr; }
};

}  // namespace tessera

#pragma GCC visibility pop
