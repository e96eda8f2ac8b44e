// The samples of a run: those that it trains on, and those held out to measure what it learned. Read once, and shared
// by the ranks of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/data/labelled_source.hpp"

namespace examples {

struct HeldOut {
  std::shared_ptr<const tessera::LabelledSource> source;
  std::size_t first = 0;  // samples [first, first + count) of the source
  std::size_t count = 0;
};

struct Dataset {
  std::string name;  // "digits", "samples.csv"
  std::shared_ptr<const tessera::LabelledSource> training;
  std::size_t training_samples = 0;  // the first of `training`
  HeldOut held_out;
  std::size_t default_epochs = 1;

  std::size_t columns() const { return training->columns(); }
  std::size_t classes() const { return training->classes(); }
};

// name: as --data takes it. The split of files is the same for every seed, so that runs can be compared.
Dataset load_dataset(const std::string& name, std::uint64_t seed);

}  // namespace examples
