// What the nn tests measure against: reproducible numbers, and gradients by central differences in double precision.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <vector>

#include "tessera/device/stream.hpp"

inline std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> result(count);
  for (float& value : result) value = static_cast<float>(random() % 20001) / 10000.0f - 1.0f;
  return result;
}

inline std::vector<double> widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// d value / d x[i] for each i. `value` reads x.
inline std::vector<double> numeric_gradient(std::vector<double>& x, const std::function<double()>& value) {
  constexpr double step = 1e-5;
  std::vector<double> result(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double here = x[i];
    x[i] = here + step;
    const double above = value();
    x[i] = here - step;
    const double below = value();
    x[i] = here;
    result[i] = (above - below) / (2.0 * step);
  }
  return result;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Equal within what fp32 loses against fp64 on sums of a few hundred terms around 1.
inline void check_close(const std::vector<float>& computed, const std::vector<double>& expected) {
  REQUIRE(computed.size() == expected.size());
  for (std::size_t i = 0; i < computed.size(); ++i) {
    CAPTURE(i);
    CHECK(static_cast<double>(computed[i]) == doctest::Approx(expected[i]).epsilon(2e-5));
  }
}

inline tessera::Stream immediate_stream() {
  return tessera::Stream(tessera::Device::cpu(), {.name = "compute", .mode = tessera::StreamMode::immediate});
}
