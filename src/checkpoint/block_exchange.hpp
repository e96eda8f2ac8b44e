// Brings elements of shared blocks to the ranks that write them, through bounded staging: blocks in groups of one per
// rank, each group in rounds of an all-gather in which every rank gives the next part of what it has for others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "checkpoint/block_map.hpp"
#include "checkpoint/channel.hpp"
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

class BlockExchange {
 public:
  BlockExchange(const BlockMap& map, const ShardValues& values, Channel& channel, const Staging& staging)
      : map_(map), values_(values), channel_(channel), staging_(staging) {}

  // Calls write(block, bytes) for each shared block that this rank writes, with the bytes of all runs in place (and
  // without the file's head). Collective.
  void run(const std::function<void(const Block&, std::span<std::byte>)>& write);

 private:
  std::size_t rounds(std::span<const Block> group) const;
  void exchange(std::span<const Block> group, std::size_t round);
  void keep_mine(const Block& mine);

  const BlockMap& map_;
  const ShardValues& values_;
  Channel& channel_;
  const Staging& staging_;
};

}  // namespace tessera::checkpoint
