// One save: every rank's blocks, then one rank's manifest. Runs on any thread, in step with the same call on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
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
  CheckpointFiles files;
  ShardValues values;
  std::string state;  // the text of state.json
  Staging staging;
  Channel& channel;
  CheckpointDirectory* directory;     // on rank 0; null elsewhere
  const std::filesystem::path& path;  // of the directory
  std::size_t keep;
  World& world;       // for warnings, and the transport of elements
  bool over_channel;  // where elements of shared blocks travel while training goes on, by the channel alone
};

// Writes the checkpoint of a step, or finds it written already with the same contents: share(), then finish(), both on
// all ranks alike, each on whatever thread. They throw DataError on every rank when a rank fails, or when that step
// stands there with other contents; then older checkpoints are as they were, and there is nothing to finish. What goes
// wrong once the new one stands (removing old ones) is a warning. Collective.
class Save {
 public:
  Save(Plans plans, SaveInput input);  // the plans outlive it
  ~Save();

  // Begins the save, and brings elements of blocks that several ranks have to the rank that writes each. Unless the
  // channel carries them, the devices' transport does: then no other collective of the job may run beside it.
  void share();
  // Writes all else, flushes it, and gives the checkpoint its name.
  void finish();

 private:
  class Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace tessera::checkpoint
