// Samples of a token file, and the split into training and held-out ones.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.hpp"
#include "tessera/data/tokens.hpp"

namespace tessera {

TokenSequences::TokenSequences(std::shared_ptr<const TokenFile> file, std::size_t length, std::size_t first,
                               std::size_t count)
    : file_(std::move(file)), length_(length), first_(first), samples_(0) {
  if (length_ == 0) throw UsageError("TokenSequences: length must be above 0, but is 0");
  if (first > file_->size() || count > file_->size() - first) {
    throw UsageError(fmt::format("{}: tokens {} to {} were asked for, but there are {}", file_->path().string(), first,
                                 first + count, file_->size()));
  }
  if (count == 0) return;
  samples_ = (count - 1) / length_;
  if (samples_ > 0) return;
  throw DataError(
      fmt::format("{}: the {} tokens from token {} on are too few for a sequence of {}, which takes one more than its "
                  "length: take shorter sequences, a larger file or another part of it",
                  file_->path().string(), count, first, length_));
}

void TokenSequences::read(const SampleBatch& chosen, TokenBatch& batch) const {
  batch.rows = chosen.indices.size();
  batch.columns = length_;
  batch.inputs.resize(batch.rows * length_);
  batch.targets.resize(batch.rows * length_);
  batch.weights.resize(batch.rows * length_);
  batch.epoch = chosen.epoch;
  batch.global_samples = chosen.global_samples;
  for (std::size_t row = 0; row < batch.rows; ++row) {
    const std::size_t index = chosen.indices[row];
    if (index >= size()) throw UsageError(fmt::format("sample {} was asked for, but there are {}", index, size()));
    const std::size_t first = first_ + index * length_;
    file_->read(first, std::span(batch.inputs).subspan(row * length_, length_));
    file_->read(first + 1, std::span(batch.targets).subspan(row * length_, length_));
    std::fill_n(batch.weights.data() + row * length_, length_, chosen.weights[row]);
  }
}

TokenSplit split(const std::shared_ptr<const TokenFile>& file, std::size_t length, double fraction) {
  if (!(fraction >= 0.0 && fraction <= 1.0)) {
    throw UsageError(fmt::format("split: the held-out fraction must be from 0 to 1, but is {}", fraction));
  }
  const std::size_t all = file->size();
  const std::size_t held_out = std::min(all, static_cast<std::size_t>(fraction * static_cast<double>(all)));
  return {.training = TokenSequences(file, length, 0, all - held_out),
          .held_out = TokenSequences(file, length, all - held_out, held_out)};
}

}  // namespace tessera
