// The loop that all trainers share: steps, losses, evaluations, metrics, progress, and the files at the end. What is
// trained, and on which data, is a Training's.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/device_data.hpp"
#include "common/held_out.hpp"
#include "common/metrics.hpp"
#include "common/progress.hpp"
#include "common/rank_metrics.hpp"
#include "common/run_checkpoints.hpp"
#include "common/run_metrics.hpp"
#include "common/run_options.hpp"
#include "common/run_trace.hpp"
#include "probe/memory_report.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/optim/schedule.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace examples {

// One rank's model and data.
class Training {
 public:
  virtual ~Training() = default;

  // All of its units are added. The loop finalizes it.
  virtual tessera::FullyShard& model() = 0;
  // Once, after finalize(): the model's memory is there. Samples come from where a run before left off, or from the
  // first.
  virtual void ready(const std::optional<tessera::SamplerState>& from) = 0;
  // Other names of tied parameters: name → the parameter's own.
  virtual std::map<std::string, std::string> aliases() const { return {}; }
  // Options that shape the model but not its tensors: option → value. A run that is resumed must have the same.
  virtual std::map<std::string, std::string> settings() const { return {}; }
  virtual std::string headline() = 0;
  // One line of --show-types: what computes the layers.
  virtual std::string computed_with();

  virtual tessera::SamplerState sampler() const = 0;  // after the steps begun so far
  // Takes the samples of step `step` (from 1). Returns how many there are over all ranks: the first ranks have
  // RunOptions::samples_per_rank() each, one may have fewer, and those after it have none.
  virtual std::size_t begin_step(std::size_t step) = 0;
  // Forward and backward of one micro-batch, of which so many samples count, at least one and at most
  // RunOptions::batch; enqueues. *loss becomes the sum of their losses divided by RunOptions::batch, and stays there.
  struct MicroBatch {
    std::size_t index;
    std::size_t samples;
    float* loss;
  };
  virtual void train_micro_batch(const MicroBatch& micro) = 0;

  // Before evaluations and saves: state that ranks have each for themselves becomes one. Collective.
  virtual void settle() {}
  virtual bool has_held_out() const = 0;
  // Between steps: adds what it found to `now`, and returns the lines for people. Collective; synchronises.
  virtual std::string evaluate(StepMetrics& now, const PassDone& pass_done) = 0;
  // After the last step: what is printed below the run, if anything. Collective; synchronises.
  virtual std::string last_words() { return {}; }

  // Adds what the trainer holds outside the runtime's arena.
  virtual void add_unplanned(tessera::probe::RankMemory& memory) const = 0;
};

class TrainingLoop {
 public:
  // Options and length must stay. Only rank 0 prints, and writes `metrics` where there is one. The loop must outlive
  // the Training that it runs, whose queued work writes losses into it.
  TrainingLoop(tessera::World& world, const RunOptions& options, const RunLength& length, RunMetrics* metrics,
               const WorkUnit& unit);

  // The whole run. Collective.
  void run(Training& training);

 private:
  void start(Training& training);
  StepMetrics train_step(Training& training, std::size_t step);
  void note_ranks(StepMetrics& now, RankFigures mine);
  std::size_t samples_of_rank(std::size_t of_step) const;
  void update(tessera::FullyShard& model, float learning_rate, std::size_t samples);
  double summed_loss(std::size_t samples) const;
  bool evaluates_after(const Training& training, std::size_t step) const;
  void evaluate(Training& training, StepMetrics& now);
  bool stops_after(std::size_t step);
  void stop(std::size_t step);
  void require_finite_weights(tessera::FullyShard& model);
  void write_metrics(Training& training, const StepMetrics& now);
  std::vector<tessera::probe::RankMemory> measure_memory(Training& training);
  void finish(Training& training);

  tessera::World& world_;
  const RunOptions& options_;
  const RunLength& length_;
  RunMetrics* metrics_;
  WorkUnit unit_;
  Progress progress_;
  tessera::Schedule schedule_;
  std::size_t done_before_ = 0;  // steps, by the run that this one resumes
  std::size_t samples_ = 0;      // of this run's steps so far, over all ranks
  std::size_t skipped_ = 0;      // of this run's steps
  std::size_t skipped_in_a_row_ = 0;
  std::optional<RunCheckpoints> checkpoints_;
  std::optional<RunTrace> trace_;
  FromDevice<float> losses_;  // of this step's micro-batches
  SlowRank slow_rank_;
  int stop_signal_ = 0;  // that ends this run; 0: none
};

}  // namespace examples
