// The squared norm of a shard, in a fixed order that leaves devices room to work in parallel: fp32 within blocks of
// `norm_block` elements, fp64 over blocks. Block b is added to the fp64 lane b modulo `norm_lanes`, from first to last;
// then the lanes k and k + norm_lanes / 2 are added, and so on down to the lanes 0 and 1. In a block, lane k of 16
// takes the elements k, k+16, …, each square rounded before it is added; then the lanes k and k+8 are added, k and k+4,
// k and k+2, k and k+1. A last block that is not full goes on with zeros. Neither the instruction set nor the number of
// threads changes the bits. Elements of 16 bits have those of their values in fp32.
#pragma once

#include <cstddef>

#include "tessera/device/stream.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/kernels/exact_squares.hpp"

#pragma GCC visibility push(default)

namespace tessera::kernels {

inline constexpr std::size_t norm_block = 1024;
inline constexpr std::size_t norm_lanes = 8192;

// On the CPU the stream's thread sums alone or, on the stream that computes, with its helpers (parallel.hpp).
enum class Threads { one, all };

// *result = sum of data[i]^2. `data` and `result` are memory of the stream's device. Does not synchronise.
void sum_of_squares(Stream& stream, Source data, std::size_t count, double* result, Threads threads = Threads::one);

// The same independent of the elements' order, and of how they are cut into parts; fewer than 2^32 elements.
void exact_squares(Stream& stream, Source data, std::size_t count, ExactSquares* result);
void add(ExactSquares& sum, const ExactSquares& term);  // both together have fewer than 2^32 elements
double value_of(const ExactSquares& sum);               // rounded to fp64: a function of its bins

}  // namespace tessera::kernels

#pragma GCC visibility pop
