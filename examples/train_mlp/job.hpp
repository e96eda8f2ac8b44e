// What all ranks of a run have in common. Made, and checked, before they start.
#pragma once

#include "common/run_options.hpp"
#include "tessera/base/bytes.hpp"
#include "train_mlp/dataset.hpp"
#include "train_mlp/model.hpp"
#include "train_mlp/options.hpp"

namespace examples {

struct Job {
  MlpOptions options;
  Dataset data;
  RunLength length = {};
  tessera::FullyShardOptions sharding = {};  // with activations, and a limit: what the machine has for a rank
};

// Throws OptionError, DataError or MemoryError for what cannot run.
Job make_job(const MlpOptions& options);

MlpShape shape_of(const Job& job);

// Held in batches that are loaded ahead.
tessera::Bytes batch_bytes(const Job& job);

}  // namespace examples
