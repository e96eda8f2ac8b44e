// The squared norm of a shard, in a fixed order that leaves devices room to work in parallel: fp32 within blocks of
// `norm_block` elements, fp64 over blocks. Block b is added to the fp64 lane b modulo `norm_lanes`, from first to last;
// then the lanes k and k + norm_lanes / 2 are added, and so on down to the lanes 0 and 1. In a block, lane k of 16
// takes the elements k, k+16, …, each square rounded before it is added; then the lanes k and k+8 are added, k and k+4,
// k and k+2, k and k+1. A last block that is not full goes on with zeros. Neither the instruction set nor the number of
// threads changes the bits. Elements of 16 bits have those of their values in fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/device/stream.hpp"
#include "tessera/kernels/elementwise.hpp"

#pragma GCC visibility push(default)

namespace tessera::kernels {

inline constexpr std::size_t norm_block = 1024;
inline constexpr std::size_t norm_lanes = 8192;

// *result = sum of data[i]^2. `data` and `result` are memory of the stream's device. Does not synchronise.
void sum_of_squares(Stream& stream, Source data, std::size_t count, double* result);

// An exact sum of squares, which does not depend on the order of what is added: the highest of its bins that is in use,
// and it and the two below it. Bin b counts multiples of 2^(32b). All zero: the sum of nothing.
struct ExactSquares {
  std::int64_t top;  // b + 16; 0: nothing
  std::int64_t bins[3];
};

// *result = sum of data[i]^2. On the CPU, for now: UsageError on a CUDA device.
void exact_squares(Stream& stream, Source data, std::size_t count, ExactSquares* result);
void add(ExactSquares& sum, const ExactSquares& more);
double value_of(const ExactSquares& sum);

}  // namespace tessera::kernels

#pragma GCC visibility pop
