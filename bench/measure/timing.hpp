// Times of benchmarks: contestants take turns, so that all see the same machine, and medians are what counts.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values);  // of at least one

// The median seconds of each of `bodies`, run in turn for so many rounds, after one round that does not count.
std::vector<double> alternate(std::span<const std::function<void()>> bodies, std::size_t rounds);

}  // namespace bench
