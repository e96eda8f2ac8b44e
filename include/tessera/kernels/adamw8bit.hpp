// AdamW with moments of 8 bits (Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization"): one pass,
// predicated on StepScalars::skip. Contracts are those of kernels/optimizer.hpp.
//
// Blocks are of 256 elements, counted from the first of the spans; the last may have fewer. A block has a scale for
// each moment, and each element a code, which stands for a number of a map. With 1, 0 and, for d = 0 … 6, 10^(d - 6)
// times the middles of equal parts of [0.1, 1], the maps have 256 numbers each:
//   signed_map    2^d parts in decade d, each with both signs: the code of 0 is 0, those of a number and its negative
//   add
//                 up to 256, and 128 stands for 1, which has no negative. Codes count upwards from -127 as numbers do.
//   unsigned_map  2^(d + 1) parts in decade d, codes ascending from that of 0, which is 0.
// All is computed in fp64 and rounded to fp32. The update, of a block:
//   m = signed_map[m_code] * m_scale;  v = unsigned_map[v_code] * v_scale
//   … as AdamW's, which leaves a new m, v and master, all three in fp32 …
//   m_scale = the largest |m| of the block;  m_code = the code whose number is nearest to m / m_scale
//   v_scale = the largest v of the block;    v_code = the code whose number is nearest to v / v_scale
// with 0 for a quotient by 0, and the smaller number where two are equally near. Of codes and scales of zero bytes all
// moments are zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/kernels/optimizer.hpp"

#pragma GCC visibility push(default)

namespace tessera::kernels {

inline constexpr std::size_t moment_block = 256;  // elements that share a scale

struct Moments8bit {
  std::uint8_t* codes;  // one for each element
  float* scales;        // one for each block
};
struct AdamW8bitSpans {
  float* master;
  Moments8bit first;
  Moments8bit second;
  Source gradient;
  std::size_t count;
  Target rounded = {nullptr, DType::bf16};
};
void adamw8bit(Stream& stream, AdamW8bitSpans spans, AdamWSettings settings, const StepScalars* scalars);
// The runs alone, as adamw() takes them. Each begins with a block, or UsageError is thrown.
void adamw8bit(Stream& stream, AdamW8bitSpans spans, std::span<const AdamWRun> runs, float learning_rate,
               const StepScalars* scalars);

// The numbers that the codes 0 … 255 stand for.
std::span<const float, 256> signed_dynamic_map();
std::span<const float, 256> unsigned_dynamic_map();
// The code whose number is nearest to x.
std::uint8_t signed_code(float x);
std::uint8_t unsigned_code(float x);

}  // namespace tessera::kernels

#pragma GCC visibility pop
