// The lines that tell what a run is, and what became of it, as far as all trainers share them.
#pragma once

#include <cstddef>
#include <string>

#include "tessera/shard/fully_shard.hpp"
#include "tessera/trainer/run_options.hpp"
#include "tessera/trainer/step_metrics.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

// "ranks    4, threads of this process; strategy fsdp, prefetch 1, fp32"
std::string ranks_line(const RunOptions& options, tessera::FullyShard& model);
// "model    (what): 1,234 parameters in 8 units" and the plan's own line
std::string model_lines(const std::string& what, const tessera::FullyShard& model);
// "run      1,000 steps of 64 samples (4 ranks x 16), 2.5 epochs; adamw, learning rate 0.002", and notes on options
// without effect.
std::string run_lines(const RunOptions& options, const RunLength& length, std::size_t training_samples);
// "step 10/100   loss 1.2345", what evaluations begin with.
std::string step_text(const StepMetrics& now, const RunLength& length);

struct RunResult {
  WorkUnit unit;
  std::size_t steps;    // of this run, without those before it was resumed
  std::size_t samples;  // over all ranks
  double seconds;
  std::size_t skipped;  // steps whose gradients were not finite
};
std::string closing_line(const RunOptions& options, const RunResult& result);
// Returns the line for a resumed run that was at its end before.
std::string nothing_left(const RunLength& length, std::size_t done);

}  // namespace tessera::trainer

#pragma GCC visibility pop
