// Whether a job fits the machine and its data: asked before anything is allocated, answered with the option to change.
#pragma once

#include "train_mlp/model.hpp"
#include "train_mlp/trainer.hpp"

namespace examples {

MlpShape shape_of(const Job& job);

// Throws OptionError when one step takes more samples than there are.
void require_enough_samples(const RunOptions& options, const Dataset& data);

// Held by a rank's model, for micro-batches of --batch rows.
tessera::Bytes activation_bytes(const Job& job);

// The runtime's options, with a memory limit: what activations and batches leave to it of this machine, shared by the
// ranks. Throws MemoryError when they leave nothing.
tessera::FullyShardOptions fitting_options(const Job& job);

// Held in batches that are loaded ahead.
tessera::Bytes batch_bytes(const Job& job);

inline constexpr std::size_t batches_ahead = 2;

}  // namespace examples
