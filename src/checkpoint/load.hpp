// One load: every rank reads the blocks in which its own elements stand, and no others, and checks each.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/channel.hpp"
#include "checkpoint/shard_values.hpp"
#include "tessera/checkpoint/checkpointer.hpp"
#include "tessera/checkpoint/state.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera::checkpoint {

struct LoadInput {
  const plan::Plan& plan;     // of this rank
  Plans plans;                // of all roles
  const ShardValues& values;  // of this rank, in the host's memory
  const std::filesystem::path& path;
  bool partial;
  Channel& channel;
  std::span<std::byte> block;  // staging for one
};

struct Loaded {
  CheckpointState state;
  // The checkpoint is of one model for all ranks, and replicas that train apart set out from it:
  // ShardValues::begin_outer_steps() is to follow.
  bool outer_steps_begin;
  // An entry for each program of the model says that the checkpoint has states of its optimizer, to which counts
  // belong, or that it keeps none.
  std::vector<bool> counts_go_on;
  // It is asked by unit and parameter: all of its states in the model's optimizer were found.
  std::vector<std::vector<bool>> states_found;
};

// Fills masters, states, untrained state, and what outer steps keep. Collective.
Loaded load(const LoadInput& input);

struct LatestInput {
  const World& world;  // for warnings
  Channel& channel;
  const std::filesystem::path& directory;
  const LatestOptions& options;
};

// See Checkpointer::latest(); as rank 0 sees it. Collective.
std::optional<FoundCheckpoint> latest(const LatestInput& input);

}  // namespace tessera::checkpoint
