// The filter is separable: lines are scaled first, then columns, of only what the cut needs.
#include "vision/src/images/image_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tessera::vision {

namespace {

constexpr std::size_t colours = 3;

// A Mean says of one pixel of the result, along one side, which pixels of the picture it is a mean of.
struct Mean {
  std::size_t first;
  std::vector<float> weights;
};

// scale: pixels of the result for each of the picture's. The cut is around the middle.
std::vector<Mean> means_along(std::size_t picture, std::size_t result, double scale) {
  const double reach = std::max(1.0, 1.0 / scale);
  const double before = (static_cast<double>(picture) * scale - static_cast<double>(result)) / 2.0;  // that is cut off
  std::vector<Mean> means;
  for (std::size_t at = 0; at < result; ++at) {
    const double middle = (static_cast<double>(at) + before + 0.5) / scale - 0.5;
    const double last = static_cast<double>(picture - 1);
    const auto begin = static_cast<std::size_t>(std::clamp(std::ceil(middle - reach), 0.0, last));
    const auto end = static_cast<std::size_t>(std::clamp(std::floor(middle + reach), 0.0, last)) + 1;
    Mean mean{begin, {}};
    double sum = 0.0;
    for (std::size_t i = begin; i < std::max(end, begin + 1); ++i) {
      const double weight = std::max(0.0, 1.0 - std::abs(static_cast<double>(i) - middle) / reach);
      mean.weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    if (sum == 0.0) mean.weights.front() = 1.0f, sum = 1.0;  // beyond the border
    for (float& weight : mean.weights) weight = static_cast<float>(static_cast<double>(weight) / sum);
    means.push_back(std::move(mean));
  }
  return means;
}

}  // namespace

void cover(const Picture& picture, std::size_t height, std::size_t width, std::span<std::uint8_t> to) {
  const double scale = std::max(static_cast<double>(height) / static_cast<double>(picture.height),
                                static_cast<double>(width) / static_cast<double>(picture.width));
  const std::vector<Mean> lines = means_along(picture.height, height, scale);
  const std::vector<Mean> columns = means_along(picture.width, width, scale);
  const std::size_t first_line = lines.front().first;
  const std::size_t end_line = lines.back().first + lines.back().weights.size();
  thread_local std::vector<float> scaled;  // [lines that are needed, width, colours]; keeps its memory
  scaled.assign((end_line - first_line) * width * colours, 0.0f);
  for (std::size_t line = first_line; line < end_line; ++line) {
    const std::uint8_t* const from = picture.pixels.data() + line * picture.width * colours;
    float* sums = scaled.data() + (line - first_line) * width * colours;
    for (const Mean& mean : columns) {
      const std::uint8_t* pixel = from + mean.first * colours;
      for (const float weight : mean.weights) {
        for (std::size_t c = 0; c < colours; ++c) sums[c] += weight * static_cast<float>(*pixel++);
      }
      sums += colours;
    }
  }
  std::vector<float> sums(width * colours);
  for (std::size_t y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    const float* from = scaled.data() + (lines[y].first - first_line) * width * colours;
    for (const float weight : lines[y].weights) {
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += weight * *from++;
    }
    std::uint8_t* const line = to.data() + y * width * colours;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      line[i] = static_cast<std::uint8_t>(std::clamp(std::lround(sums[i]), 0L, 255L));
    }
  }
}

}  // namespace tessera::vision
