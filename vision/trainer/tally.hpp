// A tally is the result of an evaluation: how many images are told right, at first and among the first five, their
// loss, and which class was taken for which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "json/json.hpp"
#include "tessera/comm/world.hpp"

namespace train_vision {

class Tally {
 public:
  explicit Tally(std::size_t classes) : classes_(classes), counts_(classes * classes, 0) {}

  // logits: [labels.size(), classes]. What is not a number is never right.
  void add(std::span<const float> logits, std::span<const std::int32_t> labels);

  // Takes out the loss that was added so far: whoever adds up losses in an order of their own puts back the sum.
  double take_loss() { return std::exchange(loss_, 0.0); }
  void put_loss(double sum) { loss_ = sum; }

  // Becomes that of all ranks, the same on each. Collective.
  void add_up(tessera::World& world);

  std::size_t images() const;
  std::size_t right() const;  // at first
  std::size_t among_five() const { return among_five_; }
  double mean_loss() const;  // cross entropy
  // Images of a class that were taken for another, or the same.
  std::size_t count(std::size_t label, std::size_t told) const { return counts_[label * classes_ + told]; }
  std::size_t classes() const { return classes_; }

 private:
  std::size_t classes_;
  std::vector<std::uint64_t> counts_;  // [label, told]
  std::uint64_t among_five_ = 0;
  double loss_ = 0.0;
};

// The table for people: a line for each class with its images, what share of them was told right, and what they were
// taken for most often beside that.
std::string confusion_table(const Tally& tally, const std::vector<std::string>& classes);

// The same as a chart (tools/plot): a row for each class, a column for what its images were taken for.
tools::Json confusion_chart(const Tally& tally, const std::vector<std::string>& classes);

}  // namespace train_vision
