// Counts are whole numbers, so that they are the same on any number of ranks.
#include "vision/trainer/tally.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "tessera/trainer/gather_values.hpp"

namespace train_vision {

namespace {

// The first of the largest; what is not a number counts as smaller than everything.
std::size_t largest_of(std::span<const float> logits) {
  std::size_t largest = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[largest] || std::isnan(logits[largest])) largest = i;
  }
  return largest;
}

// How many stand before the label's when logits are sorted.
std::size_t place_of(std::span<const float> logits, std::size_t label) {
  std::size_t before = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (i != label && !(logits[i] < logits[label] || (logits[i] == logits[label] && i > label))) ++before;
  }
  return before;
}

double loss_of(std::span<const float> logits, std::size_t label) {
  const auto largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return std::log(sum) + largest - static_cast<double>(logits[label]);
}

}  // namespace

void Tally::add(std::span<const float> logits, std::span<const std::int32_t> labels) {
  constexpr std::size_t five = 5;
  for (std::size_t image = 0; image < labels.size(); ++image) {
    const std::span<const float> row = logits.subspan(image * classes_, classes_);
    const auto label = static_cast<std::size_t>(labels[image]);
    ++counts_[label * classes_ + largest_of(row)];
    if (place_of(row, label) < five) ++among_five_;
    loss_ += loss_of(row, label);
  }
}

void Tally::add_up(tessera::World& world) {
  std::vector<std::uint64_t> mine = counts_;
  mine.insert(mine.end(), {among_five_, std::bit_cast<std::uint64_t>(loss_)});
  const auto all = tessera::trainer::gather_values<std::uint64_t>(world, mine, "evaluation");
  std::fill(counts_.begin(), counts_.end(), 0);
  among_five_ = 0;
  loss_ = 0.0;
  for (std::size_t at = 0; at < all.size(); at += mine.size()) {
    for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += all[at + i];
    among_five_ += all[at + counts_.size()];
    loss_ += std::bit_cast<double>(all[at + counts_.size() + 1]);
  }
}

std::size_t Tally::images() const {
  std::size_t sum = 0;
  for (const std::uint64_t count : counts_) sum += count;
  return sum;
}

std::size_t Tally::right() const {
  std::size_t sum = 0;
  for (std::size_t label = 0; label < classes_; ++label) sum += count(label, label);
  return sum;
}

double Tally::mean_loss() const { return loss_ / static_cast<double>(std::max<std::size_t>(1, images())); }

std::string confusion_table(const Tally& tally, const std::vector<std::string>& classes) {
  std::size_t width = 5;
  for (const std::string& name : classes) width = std::max(width, name.size());
  std::string text = fmt::format("{:<{}}  images    right  taken most often for\n", "class", width);
  for (std::size_t label = 0; label < tally.classes(); ++label) {
    std::size_t images = 0;
    std::vector<std::pair<std::size_t, std::size_t>> others;  // how often, for which
    for (std::size_t told = 0; told < tally.classes(); ++told) {
      images += tally.count(label, told);
      if (told != label && tally.count(label, told) > 0) others.emplace_back(tally.count(label, told), told);
    }
    std::sort(others.begin(), others.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    const double right =
        100.0 * static_cast<double>(tally.count(label, label)) / static_cast<double>(std::max<std::size_t>(1, images));
    text += fmt::format("{:<{}}  {:>6}  {:>5.1f} %  ", classes[label], width, images, right);
    for (std::size_t i = 0; i < std::min<std::size_t>(3, others.size()); ++i) {
      text += fmt::format("{}{} ({})", i == 0 ? "" : ", ", classes[others[i].second], others[i].first);
    }
    text += "\n";
  }
  text.pop_back();
  return text;
}

tools::Json confusion_chart(const Tally& tally, const std::vector<std::string>& classes) {
  tools::Json values = tools::Json::array();
  for (std::size_t label = 0; label < tally.classes(); ++label) {
    tools::Json row = tools::Json::array();
    for (std::size_t told = 0; told < tally.classes(); ++told) row.push_back(tally.count(label, told));
    values.push_back(row);
  }
  const auto images = static_cast<double>(std::max<std::size_t>(1, tally.images()));
  return {{"kind", "table"},
          {"title", "What held-out images were taken for"},
          {"note", fmt::format("{:.2f} % of {} told right; shades are shares of a row",
                               100.0 * static_cast<double>(tally.right()) / images, tally.images())},
          {"x", {{"label", "taken for"}}},
          {"y", {{"label", "class"}}},
          {"rows", classes},
          {"columns", classes},
          {"values", values}};
}

}  // namespace train_vision
