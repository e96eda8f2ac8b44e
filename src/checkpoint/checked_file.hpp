// A file of a checkpoint, read in blocks, each of which is held against the manifest's checksum. Where one does not
// match, the error names the tensors that lie in it.
#pragma once

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>

#include "checkpoint/file.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "tessera/checkpoint/checkpoint_reader.hpp"
#include "tessera/checkpoint/manifest.hpp"

namespace tessera::checkpoint {

// Calls visit(block, part) for each part of a file's bytes from `first` on that lies in one block.
template <typename Visit>
void for_each_block(Bytes first, std::span<std::byte> to, Visit visit) {
  while (!to.empty()) {
    const Bytes within(first.count() % checkpoint_block.count());
    const std::size_t count = std::min<std::size_t>(to.size(), (checkpoint_block - within).count());
    visit(first.count() / checkpoint_block.count(), BlockPart{within, to.first(count)});
    first += Bytes(count);
    to = to.subspan(count);
  }
}

class CheckedFile {
 public:
  CheckedFile(const std::filesystem::path& folder, ManifestFile expected);

  const std::filesystem::path& path() const { return path_; }
  const ManifestFile& expected() const { return expected_; }

  // Empty, or that the file has another size than it must have, and which tensors lack.
  std::string size_fault() const;

  Bytes block_size(std::uint64_t block) const;  // the last one may be short
  // See CheckpointReader::read_block().
  void read_block(std::uint64_t block, std::span<const BlockPart> parts, std::span<std::byte> staging) const;
  void expect(std::uint64_t block) const;  // it is read next: the system may begin
  // Bytes [first, first + to.size()) of the file.
  void read(Bytes first, std::span<std::byte> to, std::span<std::byte> staging) const;

  std::string read_text(Bytes limit) const;  // all of it
  // With offsets from the file's beginning.
  SafetensorsHeader read_tensors(std::span<std::byte> staging = {}) const;  // a block; empty: makes its own

 private:
  // Fills the spans with what stands there, and returns its checksum.
  std::uint32_t read_sum(Bytes first, std::span<const std::span<std::byte>> spans) const;
  std::string contents(Bytes first, Bytes size) const;

  std::filesystem::path path_;
  ManifestFile expected_;
  File file_;
};

}  // namespace tessera::checkpoint
