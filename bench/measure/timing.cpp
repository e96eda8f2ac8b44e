// Medians of contestants that take turns.
#include "measure/timing.hpp"

#include <algorithm>

namespace bench {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<double> alternate(std::span<const std::function<void()>> bodies, std::size_t rounds) {
  std::vector<std::vector<double>> times(bodies.size());
  for (std::size_t round = 0; round <= rounds; ++round) {
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      const Clock::time_point start = Clock::now();
      bodies[i]();
      if (round > 0) times[i].push_back(seconds_since(start));
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& each : times) medians.push_back(median(std::move(each)));
  return medians;
}

}  // namespace bench
