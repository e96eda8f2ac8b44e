// One rank's training run: model, data, steps, evaluations, and the weights at the end.
#pragma once

#include <cstddef>

#include "common/metrics.hpp"
#include "common/run_options.hpp"
#include "tessera/comm/world.hpp"
#include "train_mlp/dataset.hpp"
#include "train_mlp/options.hpp"

namespace examples {

// What all ranks have in common. Made, and checked, before they start.
struct Job {
  MlpOptions options;
  Dataset data;
  RunLength length;
  tessera::FullyShardOptions sharding;  // with a memory limit: what the machine has for a rank
};

// Runs the job on this rank. Rank 0 prints, and writes `metrics` where there is one. Collective.
void train(tessera::World& world, const Job& job, MetricsFile* metrics);

}  // namespace examples
