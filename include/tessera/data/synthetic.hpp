// Data drawn by seed, for measuring memory and speed at any size: nothing is stored, each sample is a function of
// (seed, index), so every rank draws just its own. Features are standard normal; the label is the class whose row of a
// random linear teacher (standard normal too) gives the largest score, so there is something to learn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/data/labelled_source.hpp"

#pragma GCC visibility push(default)

namespace tessera {

struct SyntheticOptions {
  std::size_t samples = 65536;
  std::size_t columns = 64;
  std::size_t classes = 10;
  std::uint64_t seed = 0;
};

class SyntheticData final : public LabelledSource {
 public:
  explicit SyntheticData(SyntheticOptions options);  // throws UsageError for no columns or no classes

  std::size_t size() const final { return options_.samples; }
  std::size_t columns() const final { return options_.columns; }
  std::size_t classes() const final { return options_.classes; }

 protected:
  void read_sample(std::size_t index, std::uint64_t epoch, float* features, std::int32_t& label) const final;

 private:
  SyntheticOptions options_;
  std::vector<float> teacher_;  // [classes, columns]
};

}  // namespace tessera

#pragma GCC visibility pop
