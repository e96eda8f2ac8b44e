// The figures of one step: what --metrics writes, and what a training adds to them when it evaluates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace tessera::trainer {

// The figures are of one step on one rank.
struct RankFigures {
  double loss = 0.0;     // summed over its samples, and divided by those of a micro-batch
  double weight = 0.0;   // its samples, in micro-batches; 0: it had none
  double seconds = 0.0;  // until the update was done there
  double waiting = 0.0;  // of them, for other ranks and for communication that was not hidden; NaN: not known (CUDA)
  double loading = 0.0;  // of them, for its own samples
};

struct WorkUnit {
  std::string_view name = "samples";  // a literal
  std::size_t per_sample = 1;
};

// The hash of a tensor's elements, which depends on their fp32 bits and places alone.
struct TensorHash {
  std::string name;
  std::uint64_t hash;
};

struct StepMetrics {
  std::size_t step = 0;  // from 1
  float loss = 0.0f;     // average over ranks and micro-batches
  double gradient_norm = 0.0;
  float learning_rate = 0.0f;
  std::size_t samples = 0;  // of this step, over all ranks
  double seconds = 0.0;
  bool skipped = false;             // the gradient was not finite, and nothing changed
  std::optional<float> loss_scale;  // of the next step; where the loss is scaled
  // Where the step was followed by an evaluation.
  std::optional<double> accuracy;
  std::optional<double> top5_accuracy;
  std::optional<double> held_out_loss;
  std::optional<std::size_t> held_out_samples;  // that it looked at
  std::vector<RankFigures> ranks;               // of --metrics-per-rank, by rank
  std::vector<TensorHash> weights;              // of --hash-weights, after the step

  double samples_per_second() const { return seconds > 0.0 ? static_cast<double>(samples) / seconds : 0.0; }
  double units_per_second(const WorkUnit& unit) const {
    return samples_per_second() * static_cast<double>(unit.per_sample);
  }
};

}  // namespace tessera::trainer

#pragma GCC visibility pop
