// Slices differ by one sample at most, so the longest slice decides the number of passes.
#include "tessera/trainer/held_out.hpp"

#include <algorithm>

namespace tessera::trainer {

namespace {

// Passes of one rank. A micro-batch is a forward and a backward pass, and the latter costs twice the former: ten steps
// cost as much as this many forward passes over as many samples each.
constexpr std::size_t passes_like_ten_steps = 10 * 3;

std::size_t samples_allowed(std::size_t count, const RunOptions& options, std::size_t ranks) {
  const std::size_t usual = options.evaluates_epochs ? 0 : passes_like_ten_steps * options.accumulate;
  const std::size_t passes = options.eval_batches.value_or(usual);
  const std::size_t per_pass = options.batch * ranks;
  if (passes == 0 || passes > count / per_pass) return count;
  return passes * per_pass;
}

}  // namespace

HeldOutSlice::HeldOutSlice(std::size_t count, const tessera::World& world, const RunOptions& options)
    : count_(count), rows_(options.batch) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto rank = static_cast<std::size_t>(world.rank());
  used_ = samples_allowed(count, options, ranks);
  begin_ = used_ * rank / ranks;
  end_ = used_ * (rank + 1) / ranks;
  const std::size_t longest = (used_ + ranks - 1) / ranks;
  passes_ = (longest + rows_ - 1) / rows_;
}

const tessera::SampleBatch& HeldOutSlice::samples(std::size_t pass, std::size_t first) {
  const std::size_t begin = std::min(begin_ + pass * rows_, end_);
  const std::size_t size = std::min(rows_, end_ - begin);
  chosen_.indices.resize(size);
  for (std::size_t i = 0; i < size; ++i) chosen_.indices[i] = first + (begin + i) * count_ / used_;
  chosen_.weights.assign(size, 1.0f);
  return chosen_;
}

}  // namespace tessera::trainer
