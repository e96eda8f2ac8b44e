// Slices differ by one sample at most, with granules by one pass, so the longest slice decides the number of passes.
#include "tessera/trainer/held_out.hpp"

#include <algorithm>

#include "tessera/trainer/gather_values.hpp"

namespace tessera::trainer {

namespace {

// Passes of one rank. A micro-batch is a forward and a backward pass, and the latter costs twice the former: ten steps
// cost as much as this many forward passes over as many samples each.
constexpr std::size_t passes_like_ten_steps = 10 * 3;

std::size_t samples_allowed(std::size_t count, const RunOptions& options, std::size_t ranks) {
  const std::size_t usual = options.evaluates_epochs ? 0 : passes_like_ten_steps * options.accumulate;
  const std::size_t passes = options.eval_batches.value_or(usual);
  const std::size_t per_pass = options.batch * (options.granules > 0 ? options.granules : ranks);
  if (passes == 0 || passes > count / per_pass) return count;
  return passes * per_pass;
}

}  // namespace

HeldOutSlice::HeldOutSlice(std::size_t count, const tessera::World& world, const RunOptions& options)
    : count_(count), rows_(options.batch) {
  const std::size_t ranks = options.data_ranks();
  const std::size_t rank = options.data_rank(static_cast<std::size_t>(world.rank()));
  const auto parts = [](std::size_t whole, std::size_t part) { return (whole + part - 1) / part; };
  used_ = samples_allowed(count, options, ranks);
  if (options.granules > 0) {
    begin_ = rank * rows_;
    end_ = used_;
    stride_ = ranks * rows_;
    passes_ = parts(used_, stride_);
    return;
  }
  begin_ = used_ * rank / ranks;
  end_ = used_ * (rank + 1) / ranks;
  stride_ = rows_;
  passes_ = parts(parts(used_, ranks), rows_);
}

const tessera::SampleBatch& HeldOutSlice::samples(std::size_t pass, std::size_t first) {
  const std::size_t begin = std::min(begin_ + pass * stride_, end_);
  const std::size_t size = std::min(rows_, end_ - begin);
  chosen_.indices.resize(size);
  for (std::size_t i = 0; i < size; ++i) chosen_.indices[i] = first + (begin + i) * count_ / used_;
  chosen_.weights.assign(size, 1.0f);
  return chosen_;
}

void HeldOutSum::add(double of_pass) {
  if (by_pass_ || parts_.empty()) {
    parts_.push_back(of_pass);
  } else {
    parts_.front() += of_pass;
  }
}

double HeldOutSum::over_ranks(tessera::World& world, const char* label) const {
  if (!by_pass_) return world.sum(parts_.empty() ? 0.0 : parts_.front(), label) / static_cast<double>(ranks_of_slice_);
  const std::vector<double> all = gather_values<double>(world, parts_, label);
  const auto ranks = static_cast<std::size_t>(world.size());
  double sum = 0.0;
  for (std::size_t run = 0; run < parts_.size() * ranks; ++run) {
    sum += all[run % ranks * parts_.size() + run / ranks];
  }
  return sum;
}

}  // namespace tessera::trainer
