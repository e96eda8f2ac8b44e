// One positioned, gathering write per block. The kernel is asked to begin with each at once, so that the device works
// while the next checksum is taken.
#include "checkpoint/block_writer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/checksum.hpp"

namespace tessera::checkpoint {

namespace {

// What of the file's head stands in the block.
std::span<const std::byte> head_in(const LaidFile& file, const Block& block) {
  const auto head = std::as_bytes(std::span(file.head));
  if (block.begin >= head.size()) return {};
  return head.subspan(block.begin, std::min<std::uint64_t>(head.size(), block.end) - block.begin);
}

}  // namespace

BlockWriter::BlockWriter(BlockWriterInput input)
    : input_(std::move(input)),
      open_(input_.files.tensors.size()),
      unflushed_(input_.files.tensors.size()),
      checksums_(input_.map.blocks()) {}

template <typename Work>
void BlockWriter::guarded(Work work) {
  if (failure_) return;
  try {
    work();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void BlockWriter::write_direct(const Block& block) {
  guarded([&] {
    pieces_.clear();
    const auto head = head_in(input_.files.tensors[block.file], block);
    if (!head.empty()) pieces_.push_back(head);
    input_.map.for_each_run(block, [&](const Run& run) {
      pieces_.push_back(std::as_bytes(input_.values.at(run.tensor->source, run.first, run.count)));
    });
    put(block, pieces_);
  });
}

void BlockWriter::write_shared(const Block& block, std::span<std::byte> bytes) {
  guarded([&] {
    const auto head = head_in(input_.files.tensors[block.file], block);
    std::copy(head.begin(), head.end(), bytes.begin());
    pieces_.assign(1, bytes);
    put(block, pieces_);
  });
}

void BlockWriter::put(const Block& block, const Pieces& pieces) {
  std::uint32_t sum = 0;
  for (const auto& piece : pieces) sum = extend_crc32c(sum, piece);
  checksums_[input_.map.number(block)] = sum;
  if (!input_.folder) return;
  file(block.file).write(block.begin, pieces);
  file(block.file).begin_flush(block.begin, block.end - block.begin);
  unflushed_[block.file] = true;
}

void BlockWriter::flush() {
  for (std::size_t index = 0; index < open_.size(); ++index) {
    if (!unflushed_[index]) continue;
    unflushed_[index] = false;
    guarded([&] { file(index).flush(); });
  }
}

void BlockWriter::rethrow_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

File& BlockWriter::file(std::size_t index) {
  if (!open_[index]) open_[index] = File::open_to_write(*input_.folder / input_.files.tensors[index].name);
  return *open_[index];
}

}  // namespace tessera::checkpoint
