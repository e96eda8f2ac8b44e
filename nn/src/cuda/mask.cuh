// Dropout masks on a CUDA device: the words of rows/dropout_lanes.hpp, from the same counters. Counter c of a row has
// the words of four columns, sixteen apart.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/rows/row_table.hpp"
#include "tessera/base/philox_rounds.hpp"
#include "tessera/device/cuda_launch.cuh"

namespace tessera::nn::cuda {

inline constexpr std::size_t mask_lanes = 16;
inline constexpr std::size_t mask_words = 4;

// Returns the number of counters of rows of so many columns: whole blocks of 64.
inline std::size_t mask_counters(std::size_t columns) {
  constexpr std::size_t block = mask_lanes * mask_words;
  return (columns + block - 1) / block * mask_lanes;
}

// Returns the column of word 0 to 3 of a row's counter.
__device__ inline std::size_t mask_column(std::size_t counter, std::size_t word) {
  return counter / mask_lanes * (mask_lanes * mask_words) + word * mask_lanes + counter % mask_lanes;
}

// 0 or the mask's scale, for the four columns of a counter.
__device__ inline void mask_factors(const DropoutMask& mask, std::uint64_t row, std::uint32_t counter,
                                    float (&factors)[4]) {
  std::uint32_t c[4] = {counter, static_cast<std::uint32_t>(row), mask.step,
                        static_cast<std::uint32_t>(row >> 32) << 16 | mask.layer};
  philox_rounds<DropoutMask>(c, mask.key[0], mask.key[1]);
  for (std::size_t word = 0; word < mask_words; ++word) factors[word] = c[word] < mask.drop_below ? 0.0f : mask.scale;
}

}  // namespace tessera::nn::cuda
