// The sum of squares for any instruction set, in norm.hpp's order. A square is rounded before it is added.
#pragma once

#include "kernels/cpu/blocks.hpp"

namespace tessera::kernels {

// norm_block of norm.hpp, which this file may not include; norm.cpp asserts that they agree.
inline constexpr std::size_t norm_block_elements = 1024;

template <typename Lanes>
float block_sum_of_squares(const float* data, std::size_t count) {
  Lanes sum = Lanes::all(0.0f);
  for_each_block(
      count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        const Lanes x = read<Lanes>(data, at, n);
        sum = sum + x * x;
      });
  return sum.pairwise_sum();
}

template <typename Lanes>
double sum_of_squares_lanes(const float* data, std::size_t count) {
  double sum = 0.0;
  for (std::size_t at = 0; at < count; at += norm_block_elements) {
    const std::size_t left = count - at;
    const std::size_t n = left < norm_block_elements ? left : norm_block_elements;
    sum += static_cast<double>(block_sum_of_squares<Lanes>(data + at, n));
  }
  return sum;
}

}  // namespace tessera::kernels
