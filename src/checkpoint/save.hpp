// One save: every rank's blocks, then one rank's manifest. Runs on any thread, in step with the same call on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "checkpoint/block_map.hpp"
#include "checkpoint/channel.hpp"
#include "checkpoint/checkpoint_directory.hpp"
#include "checkpoint/file_layout.hpp"
#include "checkpoint/shard_values.hpp"
#include "tessera/plan/checkpoint_memory.hpp"

namespace tessera::checkpoint {

// The parts of plan::checkpoint_staging().
struct Staging {
  Staging(std::span<std::byte> memory, std::size_t ranks);
  std::span<std::byte> block;
  std::span<std::byte> parts;  // of all ranks
  Bytes part;
};

struct SaveInput {
  std::uint64_t step;
  const CheckpointFiles& files;
  const BlockMap& map;
  const ShardValues& values;
  const std::string& state;  // the text of state.json
  Staging staging;
  Channel& channel;
  CheckpointDirectory* directory;     // on rank 0; null elsewhere
  const std::filesystem::path& path;  // of the directory
  std::size_t keep;
  World& world;        // for warnings, and the transport of elements
  bool in_background;  // training goes on meanwhile
};

// Writes the checkpoint of a step, or finds it written already with the same contents. Throws DataError on every rank
// when a rank fails, or when that step stands there with other contents; then older checkpoints are as they were. What
// goes wrong once the new one stands (removing old ones) is a warning. Collective.
void save(const SaveInput& input);

}  // namespace tessera::checkpoint
