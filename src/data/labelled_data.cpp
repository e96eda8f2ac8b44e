// Labelled samples held in memory, and their split.
#include "tessera/data/labelled_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "data/permutation.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

LabelledData::LabelledData(std::size_t columns, std::size_t classes, std::vector<float> features,
                           std::vector<std::int32_t> labels)
    : columns_(columns), classes_(classes), features_(std::move(features)), labels_(std::move(labels)) {
  if (features_.size() != columns_ * labels_.size()) {
    throw UsageError(
        fmt::format("LabelledData: {} features do not make {} rows of {}", features_.size(), labels_.size(), columns_));
  }
  for (std::size_t row = 0; row < labels_.size(); ++row) {
    if (labels_[row] < 0 || static_cast<std::size_t>(labels_[row]) >= classes_) {
      throw UsageError(fmt::format("LabelledData: the label of row {} is {}, but there are {} classes", row,
                                   labels_[row], classes_));
    }
  }
}

void LabelledData::read_sample(std::size_t index, float* features, std::int32_t& label) const {
  std::copy_n(features_.data() + index * columns_, columns_, features);
  label = labels_[index];
}

namespace {

LabelledData take(const LabelledData& data, std::span<const std::size_t> rows) {
  SampleBatch chosen;
  chosen.indices.assign(rows.begin(), rows.end());
  LabelledBatch batch;
  data.read(chosen, batch);
  return {data.columns(), data.classes(), std::move(batch.features), std::move(batch.labels)};
}

}  // namespace

Split split(const LabelledData& data, std::size_t held_out, std::uint64_t seed) {
  if (held_out > data.size()) {
    throw UsageError(fmt::format("split: {} samples cannot be held out of {}", held_out, data.size()));
  }
  std::vector<std::size_t> order(data.size());
  data::permute(order, seed, 0);
  const std::span<const std::size_t> rows(order);
  return {.training = take(data, rows.subspan(held_out)), .held_out = take(data, rows.first(held_out))};
}

}  // namespace tessera
