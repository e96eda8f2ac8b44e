// Storage types for 16-bit floating point: bf16 (8 exponent bits) and fp16 (IEEE binary16).
// They hold bits and convert; arithmetic is done in float. Conversion from float rounds to nearest even,
// keeps infinities, and makes every NaN a quiet one (numerics.md). The bits are those of the vector instructions.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "tessera/base/dtype.hpp"

#pragma GCC visibility push(default)

namespace tessera {

struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value);
  explicit operator float() const;
};

struct fp16 {
  std::uint16_t bits = 0;
  fp16() = default;
  explicit fp16(float value);
  explicit operator float() const;
};

static_assert(sizeof(bf16) == 2 && std::is_trivially_copyable_v<bf16>);
static_assert(sizeof(fp16) == 2 && std::is_trivially_copyable_v<fp16>);

// dtype_of<float> == DType::fp32, and so on; undefined for other types.
template <typename T>
inline constexpr DType dtype_of = [] {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, fp16>);
  return std::is_same_v<T, float> ? DType::fp32 : std::is_same_v<T, bf16> ? DType::bf16 : DType::fp16;
}();

inline bf16::bf16(float value) {
  const auto from = std::bit_cast<std::uint32_t>(value);
  const bool nan = (from & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t to_nearest_even = from + 0x7fffu + ((from >> 16) & 1u);
  bits = static_cast<std::uint16_t>((nan ? (from | 0x400000u) : to_nearest_even) >> 16);
}

inline bf16::operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline fp16::fp16(float value) {
  const auto from = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (from >> 16) & 0x8000u;
  const std::uint32_t magnitude = from & 0x7fffffffu;
  std::uint32_t to = 0;
  if (magnitude > 0x7f800000u) {  // NaN: keep the upper payload, set the quiet bit
    to = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    to = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14 the result is subnormal; 0.5 has its unit, 2^-24, as last place
    to = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    const std::uint32_t rebiased = magnitude - ((127u - 15u) << 23);
    to = (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
  }
  bits = static_cast<std::uint16_t>(sign | to);
}

inline fp16::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  std::uint32_t to = 0;
  if (exponent == 31) {
    to = 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u);
  } else if (exponent == 0) {
    to = std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
  } else {
    to = ((exponent + (127u - 15u)) << 23) | (mantissa << 13);
  }
  return std::bit_cast<float>(sign | to);
}

}  // namespace tessera

#pragma GCC visibility pop
