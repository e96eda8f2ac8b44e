// Data drawn by seed: each sample a function of (seed, index).
#include "tessera/data/synthetic.hpp"

#include <fmt/format.h>

#include <limits>
#include <span>

#include "tessera/base/error.hpp"
#include "tessera/shard/initial.hpp"

namespace tessera {

SyntheticData::SyntheticData(SyntheticOptions options) : options_(options) {
  if (options_.columns == 0) throw UsageError("SyntheticData: columns must be above 0, but is 0");
  if (options_.classes == 0 || options_.classes > std::numeric_limits<std::int32_t>::max()) {
    throw UsageError(fmt::format("SyntheticData: classes must be from 1 to {}, but is {}",
                                 std::numeric_limits<std::int32_t>::max(), options_.classes));
  }
  teacher_.resize(options_.classes * options_.columns);
  Initial::normal(0.0f, 1.0f).fill(teacher_, options_.seed, "synthetic.teacher", 0);
}

void SyntheticData::read_sample(std::size_t index, std::uint64_t, float* features, std::int32_t& label) const {
  const std::span<float> row(features, options_.columns);
  Initial::normal(0.0f, 1.0f).fill(row, options_.seed, "synthetic.features", index * options_.columns);
  float best = -std::numeric_limits<float>::infinity();
  for (std::size_t candidate = 0; candidate < options_.classes; ++candidate) {
    const float* weights = teacher_.data() + candidate * options_.columns;
    float score = 0.0f;
    for (std::size_t column = 0; column < options_.columns; ++column) score += weights[column] * row[column];
    if (score > best) {
      best = score;
      label = static_cast<std::int32_t>(candidate);
    }
  }
}

}  // namespace tessera
