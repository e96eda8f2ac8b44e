// Samples with a feature vector and a label: the interface that in-memory and generated data share, and the batch that
// they fill.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/data/sampler.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// The vectors keep their capacity when a batch is filled again.
struct LabelledBatch {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<float> features;  // [rows, columns], row-major
  std::vector<std::int32_t> labels;
  std::vector<float> weights;  // SampleBatch::weights
  std::uint64_t epoch = 0;
  std::size_t global_samples = 0;
};

class LabelledSource {
 public:
  virtual ~LabelledSource() = default;

  virtual std::size_t size() const = 0;     // samples
  virtual std::size_t columns() const = 0;  // features of each
  virtual std::size_t classes() const = 0;  // labels are 0 … classes - 1

  // Fills `batch` with the chosen samples. May be called from any thread. Throws UsageError for an index >= size().
  void read(const SampleBatch& chosen, LabelledBatch& batch) const;

 protected:
  // Writes sample `index` (in range): columns() features, and its label. Sources that draw from chance (augmentation)
  // make it a function of index and epoch.
  virtual void read_sample(std::size_t index, std::uint64_t epoch, float* features, std::int32_t& label) const = 0;
};

}  // namespace tessera

#pragma GCC visibility pop
