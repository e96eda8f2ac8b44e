// A Training is a model and its data: the rest of a run is the trainer's own, which takes steps, adds up losses,
// evaluates, writes metrics and checkpoints, shows progress, and stops when a signal says so.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "tessera/base/bytes.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/data/sampler.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/trainer/held_out.hpp"
#include "tessera/trainer/run_options.hpp"
#include "tessera/trainer/step_metrics.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

// One rank's model and data.
class Training {
 public:
  virtual ~Training() = default;

  // All of its units are added. finalize() may be this rank's choice of several.
  virtual tessera::FullyShard& model() = 0;
  virtual void finalize(const std::function<std::unique_ptr<tessera::Optimizer>()>& optimizer) {
    model().finalize(optimizer());
  }
  // Once, after finalize(): the model's memory is there. Samples come from where a run before left off, or from the
  // first.
  virtual void ready(const std::optional<tessera::SamplerState>& from) = 0;
  // Other names of tied parameters: name → the parameter's own.
  virtual std::map<std::string, std::string> aliases() const { return {}; }
  // Options that shape the model but not its tensors: option → value. A run that is resumed must have the same.
  virtual std::map<std::string, std::string> settings() const { return {}; }
  virtual std::string headline() = 0;  // what is trained, on which data
  // One line of --show-types: what computes the layers.
  virtual std::string computed_with();

  virtual tessera::SamplerState sampler() const = 0;  // after the steps begun so far
  // Takes the samples of step `step` (from 1). Returns how many there are over all ranks: the first ranks have
  // RunOptions::samples_per_rank() each, one may have fewer, and those after it have none; with granules the first
  // granules have RunOptions::batch each.
  virtual std::size_t begin_step(std::size_t step) = 0;
  // Forward and backward of one micro-batch, of which so many samples count, at least one and at most
  // RunOptions::batch; enqueues. *loss becomes the sum of their losses divided by RunOptions::batch, and stays there.
  struct MicroBatch {
    std::size_t index;  // on this rank
    std::size_t samples;
    std::size_t first_sample;  // of them, within the step of all ranks: what chance is drawn by
    float* loss;
  };
  virtual void train_micro_batch(const MicroBatch& micro) = 0;
  // All of a step, in their order; those without samples are the last ones and left out.
  virtual void train_micro_batches(std::span<const MicroBatch> all) {
    for (const MicroBatch& micro : all) train_micro_batch(micro);
  }
  // Else samples pass through this rank on their way to one that has their losses. After finalize().
  virtual bool has_losses() const { return true; }

  // Before evaluations and saves: state that ranks have each for themselves becomes one. Collective.
  virtual void settle() {}
  virtual bool has_held_out() const { return false; }
  // Between steps: adds what it found to `now`, and returns the lines for people. Collective; synchronises.
  virtual std::string evaluate(StepMetrics& now, const PassDone& pass_done);
  // After the last step: what is printed below the run, if anything. Collective; synchronises.
  virtual std::string last_words() { return {}; }

  // Memory of batches that are loaded ahead, outside the runtime's arena, for the table of memory.
  virtual tessera::Bytes batch_bytes() const { return tessera::Bytes(0); }
};

class RunMetrics;

// A run's options and length, which must stay while it trains; rank 0 writes `metrics` where there is one.
struct Run {
  const RunOptions& options;
  const RunLength& length;
  RunMetrics* metrics;
  WorkUnit unit = {};
};

// The whole run on this rank: makes the Training, which ends before this returns. Only rank 0 prints. Collective.
void train(tessera::World& world, const Run& run, const std::function<std::unique_ptr<Training>()>& make);

}  // namespace tessera::trainer

#pragma GCC visibility pop
