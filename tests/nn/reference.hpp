// The nn tests measure against these: reproducible numbers, and gradients by central differences in double precision.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <type_traits>
#include <vector>

#include "tessera/base/half.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/view.hpp"

inline std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> result(count);
  for (float& value : result) value = static_cast<float>(random() % 20001) / 10000.0f - 1.0f;
  return result;
}

template <typename T>
std::vector<double> widened(const std::vector<T>& values) {
  std::vector<double> result;
  for (const T value : values) result.push_back(static_cast<double>(static_cast<tessera::nn::Arithmetic<T>>(value)));
  return result;
}

template <typename T>
std::vector<T> stored(const std::vector<double>& values) {
  std::vector<T> result;
  for (const double value : values) result.push_back(static_cast<T>(static_cast<tessera::nn::Arithmetic<T>>(value)));
  return result;
}

// Random numbers that T holds exactly, so that what is compared has the same inputs in every type.
template <typename T>
std::vector<T> random_elements(std::size_t count, unsigned seed) {
  return stored<T>(widened(random_floats(count, seed)));
}

// The largest relative error of storing a number in T: half a unit in the last place.
template <typename T>
constexpr double rounding = std::is_same_v<T, tessera::bf16>   ? 0x1p-8
                            : std::is_same_v<T, tessera::fp16> ? 0x1p-11
                            : std::is_same_v<T, float>         ? 0x1p-24
                                                               : 0x1p-53;

template <typename T>
tessera::nn::MatrixView<T> matrix(std::vector<T>& data, std::size_t rows, std::size_t columns) {
  return {data.data(), rows, columns};
}
template <typename T>
tessera::nn::MatrixView<const T> matrix(const std::vector<T>& data, std::size_t rows, std::size_t columns) {
  return {data.data(), rows, columns};
}

// Equal within one rounding of a result around `magnitude`, and what sums of a few hundred floats lose on top.
template <typename T>
void check_stored(const std::vector<T>& computed, const std::vector<double>& expected, double magnitude = 1.0) {
  const std::vector<double> values = widened(computed);
  const double sums = std::is_same_v<T, double> ? 1e-12 : 1e-5;
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double tolerated = rounding<T> * std::abs(expected[i]) + sums * magnitude;
    if (std::abs(values[i] - expected[i]) <= tolerated) continue;  // assertions that hold would take most of the time
    CAPTURE(i);
    CAPTURE(values[i]);
    CAPTURE(expected[i]);
    CHECK(std::abs(values[i] - expected[i]) <= tolerated);
  }
}

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

inline tessera::Stream immediate_stream() {
  return tessera::Stream(tessera::Device::cpu(), {.name = "compute", .mode = tessera::StreamMode::immediate});
}
