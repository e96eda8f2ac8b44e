// Writes this rank's blocks of a checkpoint's tensor files and takes their checksums; or only takes them. The first
// failure is kept, and nothing is written after it: collectives must go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/block_map.hpp"
#include "checkpoint/file.hpp"
#include "checkpoint/shard_values.hpp"

namespace tessera::checkpoint {

struct BlockWriterInput {
  const CheckpointFiles& files;
  const BlockMap& map;
  const ShardValues& values;
  std::optional<std::filesystem::path> folder;  // none: checksums only
};

class BlockWriter {
 public:
  explicit BlockWriter(BlockWriterInput input);

  void write_direct(const Block& block);
  void write_shared(const Block& block, std::span<std::byte> bytes);  // adds the file's head, where it stands there
  void flush();                                                       // what was written is on the device
  void rethrow_failure() const;

  // By number of the block; 0 where another rank wrote it.
  const std::vector<std::uint32_t>& checksums() const { return checksums_; }

 private:
  using Pieces = std::vector<std::span<const std::byte>>;

  void put(const Block& block, const Pieces& pieces);
  File& file(std::size_t index);
  template <typename Work>
  void guarded(Work work);

  BlockWriterInput input_;
  std::vector<std::optional<File>> open_;
  std::vector<bool> unflushed_;
  std::vector<std::uint32_t> checksums_;
  Pieces pieces_;  // of the block being written
  std::exception_ptr failure_;
};

}  // namespace tessera::checkpoint
