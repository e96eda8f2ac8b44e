// One rank's training run: its model and data, for the loop that all trainers share.
#pragma once

#include "common/metrics.hpp"
#include "tessera/comm/world.hpp"
#include "train_mlp/job.hpp"

namespace examples {

// Runs the job on this rank. Rank 0 prints, and writes `metrics` where there is one. Collective.
void train(tessera::World& world, const Job& job, MetricsFile* metrics);

}  // namespace examples
