// The sum of squares for any instruction set, in norm.hpp's order. A square is rounded before it is added.
#pragma once

#include "kernels/cpu/blocks.hpp"

namespace tessera::kernels {

// norm_block and norm_lanes of norm.hpp, which this file may not include; norm.cpp asserts that they agree.
inline constexpr std::size_t norm_block_elements = 1024;
inline constexpr std::size_t norm_fp64_lanes = 8192;

// Elements ahead of the sum that memory is asked for: the end of each block would hold up the next one's reads.
inline constexpr std::size_t norm_prefetch = 512;

template <typename Lanes>
float block_sum_of_squares(const float* data, std::size_t count) {
  Lanes sum = Lanes::all(0.0f);
  for_each_block(
      count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        __builtin_prefetch(data + at + norm_prefetch);
        const Lanes x = read<Lanes>(data, at, n);
        sum = sum + x * x;
      });
  return sum.pairwise_sum();
}

template <typename Lanes>
double sum_of_squares_lanes(const float* data, std::size_t count) {
  const std::size_t blocks = (count + norm_block_elements - 1) / norm_block_elements;
  std::size_t used = 1;  // lanes with a block in them, rounded up to a power of two: zeros change no sum
  while (used < blocks && used < norm_fp64_lanes) used *= 2;
  double lane[norm_fp64_lanes];
  for (std::size_t k = 0; k < used; ++k) lane[k] = 0.0;
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t at = block * norm_block_elements;
    const std::size_t n = count - at < norm_block_elements ? count - at : norm_block_elements;
    lane[block % norm_fp64_lanes] += static_cast<double>(block_sum_of_squares<Lanes>(data + at, n));
  }
  for (std::size_t half = used / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) lane[k] += lane[k + half];
  }
  return lane[0];
}

}  // namespace tessera::kernels
