// Elements of each format in groups of 16 bytes, and the loop over a buffer: four elements at a time where every
// pointer allows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/coded_block.hpp"
#include "kernels/kernel_table.hpp"
#include "tessera/device/cuda_launch.cuh"

namespace tessera::kernels::cuda {

inline constexpr std::size_t pack = 4;  // elements that a thread handles at a time

template <Format>
struct Stored {
  using Type = std::uint16_t;
};
template <>
struct Stored<Format::fp32> {
  using Type = float;
};

// From a format known at run time to one that a template can take.
template <Format format>
using FormatConstant = std::integral_constant<Format, format>;

template <typename Function>
void for_format(Format format, const Function& function) {
  switch (format) {
    case Format::fp32: return function(FormatConstant<Format::fp32>{});
    case Format::bf16: return function(FormatConstant<Format::bf16>{});
    case Format::fp16: return function(FormatConstant<Format::fp16>{});
  }
}

__device__ inline float bits_to_float(std::uint32_t bits) { return __uint_as_float(bits); }
__device__ inline std::uint32_t float_to_bits(float value) { return __float_as_uint(value); }

// The conversions of base/half.hpp, operation by operation: the bits of the CPU's.
__device__ inline float bf16_to_float(std::uint16_t bits) {
  return bits_to_float(static_cast<std::uint32_t>(bits) << 16);
}
__device__ inline std::uint16_t float_to_bf16(float value) {
  const std::uint32_t from = float_to_bits(value);
  const bool nan = (from & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t to_nearest_even = from + 0x7fffu + ((from >> 16) & 1u);
  return static_cast<std::uint16_t>((nan ? (from | 0x400000u) : to_nearest_even) >> 16);
}
__device__ inline float fp16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  std::uint32_t to = ((exponent + (127u - 15u)) << 23) | (mantissa << 13);
  if (exponent == 31) {
    to = 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u);
  } else if (exponent == 0) {
    to = float_to_bits(static_cast<float>(mantissa) * 0x1p-24f);
  }
  return bits_to_float(sign | to);
}
__device__ inline std::uint16_t float_to_fp16(float value) {
  const std::uint32_t from = float_to_bits(value);
  const std::uint32_t sign = (from >> 16) & 0x8000u;
  const std::uint32_t magnitude = from & 0x7fffffffu;
  std::uint32_t to = 0;
  if (magnitude > 0x7f800000u) {
    to = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {
    to = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    to = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    const std::uint32_t rebiased = magnitude - ((127u - 15u) << 23);
    to = (rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | to);
}

template <Format format>
__device__ inline float to_float(typename Stored<format>::Type stored) {
  if constexpr (format == Format::fp32) return stored;
  if constexpr (format == Format::bf16) return bf16_to_float(stored);
  if constexpr (format == Format::fp16) return fp16_to_float(stored);
}
template <Format format>
__device__ inline typename Stored<format>::Type to_stored(float value) {
  if constexpr (format == Format::fp32) return value;
  if constexpr (format == Format::bf16) return float_to_bf16(value);
  if constexpr (format == Format::fp16) return float_to_fp16(value);
}

template <Format format>
struct alignas(pack * sizeof(typename Stored<format>::Type)) Pack {
  typename Stored<format>::Type element[pack];
};

// Element i of a typed buffer, as floats.
template <Format format>
struct View {
  using Type = typename Stored<format>::Type;
  Type* data;

  __device__ float get(std::size_t i) const { return to_float<format>(data[i]); }
  __device__ void set(std::size_t i, float value) const { data[i] = to_stored<format>(value); }
  __device__ void get(std::size_t i, float (&values)[pack]) const {
    const Pack<format> stored = *reinterpret_cast<const Pack<format>*>(data + i);
    for (std::size_t k = 0; k < pack; ++k) values[k] = to_float<format>(stored.element[k]);
  }
  __device__ void set(std::size_t i, const float (&values)[pack]) const {
    Pack<format> stored;
    for (std::size_t k = 0; k < pack; ++k) stored.element[k] = to_stored<format>(values[k]);
    *reinterpret_cast<Pack<format>*>(data + i) = stored;
  }
};

// Element i of blocks of codes (DType::int8). A pack lies inside one block.
struct Codes {
  using Type = std::byte;
  const std::byte* data;

  __device__ const std::byte* block(std::size_t i) const { return data + i / coded_elements * coded_bytes; }
  __device__ float scale(std::size_t i) const { return *reinterpret_cast<const float*>(block(i)); }
  __device__ const signed char* codes(std::size_t i) const {
    return reinterpret_cast<const signed char*>(block(i) + sizeof(float)) + i % coded_elements;
  }
  __device__ float get(std::size_t i) const { return static_cast<float>(*codes(i)) * scale(i); }
  __device__ void get(std::size_t i, float (&values)[pack]) const {
    struct alignas(pack) PackOfCodes {
      signed char code[pack];
    };
    const PackOfCodes stored = *reinterpret_cast<const PackOfCodes*>(codes(i));
    const float by = scale(i);
    for (std::size_t k = 0; k < pack; ++k) values[k] = static_cast<float>(stored.code[k]) * by;
  }
};

template <Format format>
bool packed(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(Pack<format>) == 0;
}

// Which of the threads that share a buffer this one is.
struct Sharing {
  std::size_t thread;
  std::size_t threads;
};

// The work is shared by `blocks` blocks; this one is number `block`.
__device__ inline Sharing shared_by(unsigned blocks, unsigned block) {
  return {static_cast<std::size_t>(block) * blockDim.x + threadIdx.x, static_cast<std::size_t>(blocks) * blockDim.x};
}

// One thread's share of `count` elements: whole packs first when `packs`, then the rest one by one.
// `body` has packed(i), for the elements i … i + 3, and single(i).
template <typename Body>
__device__ inline void for_each_element(std::size_t count, bool packs, const Sharing& by, const Body& body) {
  const std::size_t whole = packs ? count / pack : 0;
  for (std::size_t i = by.thread; i < whole; i += by.threads) body.packed(i * pack);
  for (std::size_t i = whole * pack + by.thread; i < count; i += by.threads) body.single(i);
}
template <typename Body>
__device__ inline void for_each_element(std::size_t count, bool packs, const Body& body) {
  for_each_element(count, packs, shared_by(gridDim.x, blockIdx.x), body);
}

inline tessera::cuda::Launch launch_for(std::size_t count, bool packs) {
  return tessera::cuda::blocks_for(packs ? (count + pack - 1) / pack : count);
}

}  // namespace tessera::kernels::cuda
