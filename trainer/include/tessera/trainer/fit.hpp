// Whether a run fits the machine and its data: asked before anything is allocated, answered with the option to change.
#pragma once

#include <cstddef>
#include <string>

#include "tessera/base/bytes.hpp"
#include "tessera/trainer/run_options.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

// Throws OptionError when there is no sample, or, where short steps are dropped, too few for one. data: its name.
void require_enough_samples(const RunOptions& options, const std::string& data, std::size_t samples);

// ModelMemory is what a rank's model and data take beside the runtime's own bytes, and the options that make it less.
struct ModelMemory {
  tessera::Bytes activations;  // in the runtime's arena
  tessera::Bytes batches;      // outside of it
  std::string smaller;         // "--batch, --hidden or --depth"
};

// The runtime's options, with a memory limit: this machine's memory, shared by the ranks, without the batches. Throws
// MemoryError when activations and batches alone are more than that.
tessera::FullyShardOptions fitting_options(const RunOptions& options, const ModelMemory& memory);

// How much memory this job may take, so that a model that is too large is refused instead of killed.

// The machine's memory, or the control group's limit where that is lower.
tessera::Bytes host_memory();

}  // namespace tessera::trainer

#pragma GCC visibility pop
