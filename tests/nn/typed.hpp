// For tests that run for every element type, against a result in double.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "reference.hpp"

#define TESSERA_ALL_ELEMENTS double, float, tessera::bf16, tessera::fp16

// NaN in every element: what is not written shows.
template <typename T>
std::vector<T> unset(std::size_t count) {
  return stored<T>(std::vector<double>(count, std::numeric_limits<double>::quiet_NaN()));
}

// One rounding to T, and what sums of a few hundred terms around 1 lose in fp32.
template <typename T>
constexpr double tolerance() {
  return std::is_same_v<T, double> ? 1e-9 : rounding<T> + 2e-5;
}

// Equal within `tolerated`, relative to values above 1 and absolute below.
template <typename T>
void check_elements(const std::vector<T>& computed, const std::vector<double>& expected,
                    double tolerated = tolerance<T>()) {
  const std::vector<double> values = widened(computed);
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto right = doctest::Approx(expected[i]).epsilon(tolerated);
    if (values[i] == right) continue;  // millions of assertions that hold would take most of the suite's time
    CAPTURE(i);
    CHECK(values[i] == right);
  }
}
