// What all ranks of a run have in common. Made, and checked, before they start.
#pragma once

#include "common/run_options.hpp"
#include "tessera/base/bytes.hpp"
#include "train_gpt/dataset.hpp"
#include "train_gpt/options.hpp"
#include "train_gpt/shape.hpp"

namespace examples {

struct Job {
  GptOptions options;
  TokenData data;
  GptShape shape = {};
  RunLength length = {};
  std::size_t sample = 0;                    // bytes of generated text
  tessera::FullyShardOptions sharding = {};  // with activations, and a limit: what the machine has for a rank
};

// Throws OptionError, DataError or MemoryError for what cannot run.
Job make_job(const GptOptions& options);

// Held in batches that are loaded ahead.
tessera::Bytes batch_bytes(const Job& job);

}  // namespace examples
