// Where this rank's elements of a checkpoint's tensors stand in its memory: in the model, or in a copy of its shards.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/block_map.hpp"
#include "checkpoint/file_layout.hpp"
#include "tessera/shard/fully_shard.hpp"

namespace tessera::checkpoint {

class ShardValues {
 public:
  // Reads the model's, between steps. Synchronises with its streams.
  explicit ShardValues(FullyShard& model);

  // The run's elements, which are this rank's.
  std::span<const std::byte> at(const Run& run) const;
  // This rank's elements of a tensor, or of its slice of it: one run, perhaps empty, as it is of another replica's
  // tensors.
  struct Share {
    std::size_t first = 0;  // element of the tensor or the slice
    std::span<std::byte> bytes = {};
  };
  const Share& share(const TensorSource& source) const;
  // Calls visit(element, bytes) for the parts of a share that follow each other in the tensor, whose elements have
  // `size` bytes.
  void for_each_part(const plan::Plan& plan, const TensorSource& source, std::size_t size,
                     const std::function<void(std::size_t first, std::span<std::byte> bytes)>& visit) const;

  // Where replicas train apart: they set out from the masters, which are here, with an outer optimizer at rest.
  // Synchronises.
  void begin_outer_steps() const;

  // The same values in `memory` of the host, which holds at least plan::checkpoint_copy() bytes. Synchronises.
  ShardValues copied_to(std::span<std::byte> memory) const;
  // Takes the values of such a copy back. Synchronises.
  void copy_from(const ShardValues& copy) const;

 private:
  std::vector<Share>& shares(std::size_t kind, std::size_t unit) { return shares_[kind * units_ + unit]; }
  std::size_t row_of(TensorSource::Kind kind, std::size_t state = 0) const;
  void take(FullyShard& model, std::size_t row, std::size_t unit, std::string_view state);

  Stream* stream_;  // of the device that the values are on, or copies of which they are
  std::size_t units_;
  std::size_t states_;
  std::size_t role_;                        // this rank's
  std::vector<std::size_t> variants_;       // by unit: this rank's (Plan::variant_of)
  std::vector<std::vector<Share>> shares_;  // [masters, states…, buffers, anchors, outer momenta][unit][place]
};

}  // namespace tessera::checkpoint
