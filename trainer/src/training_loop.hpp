// The loop that all trainers share: steps, losses, evaluations, metrics, progress, and the files at the end.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "probe/memory_report.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/optim/schedule.hpp"
#include "tessera/plan/granules.hpp"
#include "tessera/shard/fully_shard.hpp"
#include "tessera/trainer/device_data.hpp"
#include "tessera/trainer/run_options.hpp"
#include "tessera/trainer/training.hpp"
#include "trainer/src/progress.hpp"
#include "trainer/src/rank_metrics.hpp"
#include "trainer/src/run_checkpoints.hpp"
#include "trainer/src/run_metrics.hpp"
#include "trainer/src/run_trace.hpp"

namespace tessera::trainer {

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
  void require_granules(const tessera::FullyShard& model) const;
  StepMetrics train_step(Training& training, std::size_t step);
  void take_micro_batches(Training& training, std::size_t of_step);
  void note_loss(StepMetrics& now, const RankFigures& mine);
  std::size_t samples_of_rank(std::size_t of_step) const;
  std::size_t samples_of_granule(std::size_t granule, std::size_t of_step) const;
  void update(tessera::FullyShard& model, float learning_rate);
  double weight_of(std::size_t samples) const;  // in micro-batches
  double weight_of_rank() const;
  double summed_loss() const;
  double mean_over_granules(std::size_t of_step);
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
  tessera::Granules granules_;
  std::vector<Training::MicroBatch> micro_batches_;
  std::vector<std::size_t> micro_samples_;  // of this step's micro-batches on this rank, those without samples left out
  std::vector<double> granule_weights_;     // of the same
  FromDevice<float> losses_;                // of the same
  SlowRank slow_rank_;
  int stop_signal_ = 0;  // that ends this run; 0: none
};

}  // namespace tessera::trainer
