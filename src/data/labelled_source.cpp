// Filling a batch from a source of labelled samples.
#include "tessera/data/labelled_source.hpp"

#include <fmt/format.h>

#include "tessera/base/error.hpp"

namespace tessera {

void LabelledSource::read(const SampleBatch& chosen, LabelledBatch& batch) const {
  batch.rows = chosen.indices.size();
  batch.columns = columns();
  batch.features.resize(batch.rows * batch.columns);
  batch.labels.resize(batch.rows);
  batch.weights = chosen.weights;
  batch.epoch = chosen.epoch;
  batch.global_samples = chosen.global_samples;
  for (std::size_t row = 0; row < batch.rows; ++row) {
    const std::size_t index = chosen.indices[row];
    if (index >= size()) throw UsageError(fmt::format("sample {} was asked for, but there are {}", index, size()));
    read_sample(index, batch.features.data() + row * batch.columns, batch.labels[row]);
  }
}

}  // namespace tessera
