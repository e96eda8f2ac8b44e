// Blocks of 8-bit codes with a scale (DType::int8) for any instruction set: rounding to them, and reading them. A
// vector of lanes lies inside one block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/coded_block.hpp"
#include "kernels/cpu/blocks.hpp"

namespace tessera::kernels {

// How sums over ranks read what a rank brings: elements one after the other, or these blocks.
template <typename Lanes, Format format>
struct Elements {
  [[gnu::always_inline]] static inline Lanes read(const void* data, std::size_t at, std::size_t n) {
    return kernels::read<Lanes, format>(data, at, n);
  }
};
template <typename Lanes>
struct Codes {
  [[gnu::always_inline]] static inline Lanes read(const void* data, std::size_t at, std::size_t) {
    const auto* const block = static_cast<const std::byte*>(data) + at / coded_elements * coded_bytes;
    float scale;
    __builtin_memcpy(&scale, block, sizeof scale);
    const auto* const codes = reinterpret_cast<const std::int8_t*>(block + sizeof scale) + at % coded_elements;
    return Lanes::load_codes(codes) * Lanes::all(scale);
  }
};

template <typename Lanes, Format to>
void decode_to(const CastArguments& a) {
  for_each_block(
      a.count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        write<Lanes, to>(a.to, at, n, Codes<Lanes>::read(a.from, at, n));
      });
}

template <typename Lanes>
void decode_lanes(const CastArguments& a) {
  switch (a.to_format) {
    case Format::fp32: return decode_to<Lanes, Format::fp32>(a);
    case Format::bf16: return decode_to<Lanes, Format::bf16>(a);
    case Format::fp16: return decode_to<Lanes, Format::fp16>(a);
  }
}

template <typename Lanes, Format from>
[[gnu::always_inline]] inline void encode_block(std::byte* to, const void* data, std::size_t begin) {
  Lanes magnitudes = Lanes::all(0.0f);
  for (std::size_t at = 0; at < coded_elements; at += lane_count) {
    magnitudes = larger_magnitudes(magnitudes, read<Lanes, from>(data, begin + at, lane_count));
  }
  const CodedBlock block = coded_block(__builtin_bit_cast(float, largest_of(magnitudes)));
  __builtin_memcpy(to, &block.scale, sizeof block.scale);
  auto* const codes = reinterpret_cast<std::int8_t*>(to + sizeof block.scale);
  if (block.inverse == 0.0f) {
    __builtin_memset(codes, 0, coded_elements);
    return;
  }
  // The sum's lowest byte is the nearest integer.
  const Lanes inverse = Lanes::all(block.inverse), rounder = Lanes::all(code_rounder);
  for (std::size_t at = 0; at < coded_elements; at += lane_count) {
    (read<Lanes, from>(data, begin + at, lane_count) * inverse + rounder).store_lowest_bytes(codes + at);
  }
}

template <typename Lanes, Format from>
void encode_from(const CastArguments& a) {
  auto* to = static_cast<std::byte*>(a.to);
  for (std::size_t begin = 0; begin < a.count; begin += coded_elements, to += coded_bytes) {
    encode_block<Lanes, from>(to, a.from, begin);
  }
}

template <typename Lanes>
void encode_lanes(const CastArguments& a) {
  switch (a.from_format) {
    case Format::fp32: return encode_from<Lanes, Format::fp32>(a);
    case Format::bf16: return encode_from<Lanes, Format::bf16>(a);
    case Format::fp16: return encode_from<Lanes, Format::fp16>(a);
  }
}

}  // namespace tessera::kernels
