// Whether a job fits the machine and its data: asked before anything is allocated, answered with the option to change.
#pragma once

#include "train_mlp/model.hpp"
#include "train_mlp/trainer.hpp"

namespace examples {

MlpShape shape_of(const Job& job);

// Throws OptionError when one step takes more samples than there are.
void require_enough_samples(const RunOptions& options, const Dataset& data);

// The runtime's options, with the bytes of the model's activations and a memory limit: what batches leave of this
// machine, shared by the ranks. Throws MemoryError when activations and batches leave nothing.
tessera::FullyShardOptions fitting_options(const Job& job);

// Held in batches that are loaded ahead.
tessera::Bytes batch_bytes(const Job& job);

inline constexpr std::size_t batches_ahead = 2;

}  // namespace examples
