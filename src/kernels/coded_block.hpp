// The scale of a block of 8-bit codes (DType::int8), for the kernels of every device.
#pragma once

#include <cstddef>

#include "kernels/any_device.hpp"

namespace tessera::kernels {

// block_of(DType::int8), and what a block takes, of dtype.hpp, which this file may not include; elementwise.cpp asserts
// that they agree.
inline constexpr std::size_t coded_elements = 256;
inline constexpr std::size_t coded_bytes = sizeof(float) + coded_elements;

struct CodedBlock {
  float scale;
  float inverse;  // a code is the integer nearest to x * inverse, to even between two; 0: all codes are 0
};

// A block's largest magnitude. NaN and infinity make the whole block no number; what is too small for a scale in fp32
// is -0, which is neutral in sums.
[[gnu::always_inline]] TESSERA_ANY_DEVICE inline CodedBlock coded_block(float largest) {
  if (!(largest <= 0x1.fffffep127f)) return {__builtin_bit_cast(float, 0x7fc00000u), 0.0f};
  if (largest < 0x1p-100f) return {-0.0f, 0.0f};
  return {largest / 127.0f, 127.0f / largest};
}

// Added to a number between -127 and 127 it leaves the nearest integer in the sum's lowest byte, in two's complement.
inline constexpr float code_rounder = 0x1.8p23f;

}  // namespace tessera::kernels
