// Where this rank's elements of a checkpoint's tensors stand in its memory: in the model, or in a copy of its shards.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "checkpoint/file_layout.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera::checkpoint {

class ShardValues {
 public:
  // Of the model, between steps. Synchronises with its streams.
  explicit ShardValues(FullyShard& model);

  // Elements [first, first + count) of a tensor, which are this rank's.
  std::span<float> at(const TensorSource& source, std::size_t first, std::size_t count) const;
  // The elements of a tensor that are this rank's: one run, perhaps empty.
  struct Share {
    std::size_t first = 0;
    std::span<float> values = {};
  };
  const Share& share(const TensorSource& source) const;

  // The same values in `memory` of the host, which holds at least plan::checkpoint_copy() bytes. Synchronises.
  ShardValues copied_to(std::span<std::byte> memory) const;
  // Takes the values of such a copy back. Synchronises.
  void copy_from(const ShardValues& copy) const;

 private:
  std::vector<Share>& shares(std::size_t kind, std::size_t unit) { return shares_[kind * units_ + unit]; }

  Stream* stream_;  // of the device that the values are on, or copies of which they are
  std::size_t units_;
  std::size_t states_;
  std::vector<std::vector<Share>> shares_;  // [masters, states…, buffers][unit][place]
};

}  // namespace tessera::checkpoint
