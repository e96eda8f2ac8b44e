// Who writes which block of a checkpoint's tensor files, and whose elements stand in it. Every rank computes the same
// map from the plan's layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "checkpoint/file_layout.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera::checkpoint {

// Elements of one tensor that follow each other in the file and belong to one rank.
struct Run {
  std::size_t rank;
  const LaidTensor* tensor;
  std::size_t first;                                                              // element of the tensor
  std::size_t held;                                                               // and of what the rank has of it
  std::size_t count;                                                              // > 0
  std::uint64_t begin() const { return tensor->begin + tensor->size_of(first); }  // in the file
  std::uint64_t bytes() const { return tensor->size_of(count); }
};

struct Block {
  std::size_t file;   // in CheckpointFiles::tensors
  std::size_t index;  // in the file
  std::uint64_t begin;
  std::uint64_t end;
  std::size_t writer = 0;  // rank
  bool shared = false;     // has elements of several ranks
};

class BlockMap {
 public:
  // `files` and the plans must stay.
  BlockMap(Plans plans, const CheckpointFiles& files);

  const std::vector<Block>& direct() const { return direct_; }  // each of one rank's elements, or of nobody's
  // In groups of as many as there are ranks, in which each rank writes one.
  const std::vector<Block>& shared() const { return shared_; }

  std::size_t blocks(std::size_t file) const { return first_block_[file + 1] - first_block_[file]; }
  std::size_t blocks() const { return first_block_.back(); }
  std::size_t number(const Block& block) const { return first_block_[block.file] + block.index; }  // over all files
  std::size_t writer(std::size_t number) const { return writers_[number]; }

  // The runs in the block, ascending. What they leave out is the file's head.
  void for_each_run(const Block& block, const std::function<void(const Run&)>& visit) const;

 private:
  void add(Block block);
  Run run_at(const LaidTensor& tensor, std::size_t element) const;

  Plans plans_;
  const CheckpointFiles& files_;
  std::vector<std::size_t> first_block_;
  std::vector<std::uint32_t> writers_;
  std::vector<Block> direct_;
  std::vector<Block> shared_;
};

}  // namespace tessera::checkpoint
