// Softmax over rows of logits for any instruction set and format.
#pragma once

#include "src/rows/exponential.hpp"

namespace tessera::nn {

// Sums run in sixteen lanes over so many elements, and in fp64 from there on.
inline constexpr std::size_t softmax_block = 1024;

template <typename Set, Format format>
void softmax_sum_of(const SoftmaxSum& a) {
  using V = Values<Set, format>;
  V lanes = all<V>(lowest<format>);
  for (std::size_t at = 0; at < a.count; at += lane_count) {
    const std::size_t n = a.count - at;
    lanes = larger(lanes, first_lanes<Set, format>(n, read<Set, format>(a.logits, at, n), lowest<format>));
  }
  const Real<format> largest = reduce<Larger>(lanes);
  double total = 0.0;
  for (std::size_t first = 0; first < a.count; first += softmax_block) {
    V part{};
    for (std::size_t at = first; at < a.count && at < first + softmax_block; at += lane_count) {
      const std::size_t n = a.count - at;
      const V e = exponential<Set, format>(read<Set, format>(a.logits, at, n) - all<V>(largest));
      part = part + first_lanes<Set, format>(n, e, 0);
    }
    total += static_cast<double>(sum(part));
  }
  *a.largest = static_cast<double>(largest);
  *a.sum = total;
}

template <typename Set, Format format>
void softmax_scaled_of(const SoftmaxScaled& a) {
  using V = Values<Set, format>;
  const V largest = all<V>(static_cast<Real<format>>(a.largest));
  const V factor = all<V>(static_cast<Real<format>>(a.factor));
  for (std::size_t at = 0; at < a.count; at += lane_count) {
    const std::size_t n = a.count - at;
    write<Set, format>(a.to, at, n, exponential<Set, format>(read<Set, format>(a.logits, at, n) - largest) * factor);
  }
}

template <typename Set>
void softmax_sum_lanes(const SoftmaxSum& a) {
  by_format(a.format, [&]<Format format>() { softmax_sum_of<Set, format>(a); });
}

template <typename Set>
void softmax_scaled_lanes(const SoftmaxScaled& a) {
  by_format(a.format, [&]<Format format>() { softmax_scaled_of<Set, format>(a); });
}

}  // namespace tessera::nn
