// One walk over each list.
#include "tessera/base/stretches.hpp"

#include <algorithm>
#include <cstddef>

namespace tessera {

Stretches merged(Stretches stretches) {
  std::sort(stretches.begin(), stretches.end());
  Stretches result;
  for (const auto& [begin, end] : stretches) {
    if (!result.empty() && begin <= result.back().second) {
      result.back().second = std::max(result.back().second, end);
    } else {
      result.emplace_back(begin, end);
    }
  }
  return result;
}

double length(const Stretches& merged) {
  double sum = 0;
  for (const auto& [begin, end] : merged) sum += end - begin;
  return sum;
}

double common_length(const Stretches& merged_a, const Stretches& merged_b) {
  double sum = 0;
  for (std::size_t a = 0, b = 0; a < merged_a.size() && b < merged_b.size();) {
    const auto [begin_a, end_a] = merged_a[a];
    const auto [begin_b, end_b] = merged_b[b];
    sum += std::max(0.0, std::min(end_a, end_b) - std::max(begin_a, begin_b));
    ++(end_a < end_b ? a : b);
  }
  return sum;
}

}  // namespace tessera
