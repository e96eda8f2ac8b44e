// Stochastic rounding to bf16: up or down by chance, so that the mean is the value itself, and updates smaller than
// half a unit of bf16's last place are not lost. The chance is drawn by name, element and step alone, so that devices,
// instruction sets, threads, ranks and shards have the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/base/half.hpp"
#include "tessera/base/philox.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/step_scalars.hpp"

#pragma GCC visibility push(default)

namespace tessera::kernels {

// to[i] = the upper half of (the bits of from[i] + r), of a NaN as cast() rounds it. r has 16 random bits: with e =
// first + i, block = e / 128, word = e / 32 mod 4, half = e / 16 mod 2 and lane = e mod 16 they are the low (half 0) or
// high ones of that word of Philox4x32-10 with the key and the counter (c, c >> 32, step, step >> 32), of which c =
// 16 block + lane, and step is StepScalars::step. What bf16 can hold stays as it is.
struct RoundedSpans {
  bf16* to;
  const float* from;
  std::size_t count;
  PhiloxKey key;        // of (seed, name)
  std::uint64_t first;  // element of the tensor
};
void round_stochastically(Stream& stream, RoundedSpans spans, const StepScalars* scalars);

}  // namespace tessera::kernels

#pragma GCC visibility pop
