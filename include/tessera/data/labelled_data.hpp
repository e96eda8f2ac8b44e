// Labelled samples held in memory, read from a CSV file, and how they are split into training and held-out samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "tessera/data/labelled_source.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class LabelledData final : public LabelledSource {
 public:
  // features: labels.size() rows of `columns`. Throws UsageError when sizes do not fit or a label is not below
  // `classes`.
  LabelledData(std::size_t columns, std::size_t classes, std::vector<float> features, std::vector<std::int32_t> labels);

  std::size_t size() const final { return labels_.size(); }
  std::size_t columns() const final { return columns_; }
  std::size_t classes() const final { return classes_; }

 protected:
  void read_sample(std::size_t index, std::uint64_t epoch, float* features, std::int32_t& label) const final;

 private:
  std::size_t columns_;
  std::size_t classes_;
  std::vector<float> features_;
  std::vector<std::int32_t> labels_;
};

struct CsvOptions {
  std::size_t columns = 0;  // features per line; 0: as many as the first line has
  std::size_t classes = 0;  // 0: the largest label + 1
  float scale = 1.0f;       // features are multiplied with it
};

// Reads lines of numbers separated by commas: the features, then the label, a whole number from 0 to 65535. No header
// line. Throws DataError naming path, line and column: a file that is missing, empty or not a file, another number of
// columns, what is not a finite number, a label out of range.
LabelledData read_labelled_csv(const std::filesystem::path& path, const CsvOptions& options = {});

struct Split {
  LabelledData training;
  LabelledData held_out;
};

// Takes `held_out` samples away by a random permutation that depends on (size, seed) alone; both parts keep the
// permutation's order and the number of classes. Throws UsageError when held_out > size.
Split split(const LabelledData& data, std::size_t held_out, std::uint64_t seed);

}  // namespace tessera

#pragma GCC visibility pop
