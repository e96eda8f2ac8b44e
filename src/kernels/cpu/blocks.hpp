// Sixteen elements at a time: reading, writing, and a loop whose last round may have fewer.
//
// `Lanes` is the vector type of one instruction set (lanes_*.hpp), defined in one translation unit only; everything
// here is a template over it, so that no function compiled with one set's flags is shared with another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel_table.hpp"

namespace tessera::kernels {

inline constexpr std::size_t lane_count = 16;

template <Format>
struct Storage {
  using Element = std::uint16_t;
};
template <>
struct Storage<Format::fp32> {
  using Element = float;
};

template <typename Lanes, Format format>
[[gnu::always_inline]] inline Lanes read_whole(const typename Storage<format>::Element* from) {
  if constexpr (format == Format::fp32) return Lanes::load(from);
  if constexpr (format == Format::bf16) return Lanes::load_bf16(from);
  if constexpr (format == Format::fp16) return Lanes::load_fp16(from);
}

template <typename Lanes, Format format>
[[gnu::always_inline]] inline void write_whole(typename Storage<format>::Element* to, Lanes value) {
  if constexpr (format == Format::fp32) value.store(to);
  if constexpr (format == Format::bf16) value.store_bf16(to);
  if constexpr (format == Format::fp16) value.store_fp16(to);
}

// The elements data[at], … data[at + n - 1], then zeros; 1 <= n <= lane_count.
template <typename Lanes, Format format = Format::fp32>
[[gnu::always_inline]] inline Lanes read(const void* data, std::size_t at, std::size_t n) {
  using Element = typename Storage<format>::Element;
  const auto* from = static_cast<const Element*>(data) + at;
  if (n == lane_count) return read_whole<Lanes, format>(from);
  Element padded[lane_count] = {};
  __builtin_memcpy(padded, from, n * sizeof(Element));
  return read_whole<Lanes, format>(padded);
}

template <typename Lanes, Format format = Format::fp32>
[[gnu::always_inline]] inline void write(void* data, std::size_t at, std::size_t n, Lanes value) {
  using Element = typename Storage<format>::Element;
  auto* to = static_cast<Element*>(data) + at;
  if (n == lane_count) return write_whole<Lanes, format>(to, value);
  Element padded[lane_count];
  write_whole<Lanes, format>(padded, value);
  __builtin_memcpy(to, padded, n * sizeof(Element));
}

// Results so large that no cache near a core holds them go past the caches: the line is not read before it is written,
// and does not drive out others.
inline constexpr std::size_t streamed_bytes = std::size_t{2} << 20;
[[gnu::always_inline]] inline bool streams(const void* to, std::size_t bytes) {
  return bytes >= streamed_bytes && reinterpret_cast<std::uintptr_t>(to) % 64 == 0;
}

// Writes as write() does, past the caches where `past_caches`; then a whole vector stands aligned, and Lanes::fence()
// follows the last.
template <typename Lanes, Format format, bool past_caches>
[[gnu::always_inline]] inline void write_result(void* data, std::size_t at, std::size_t n, Lanes value) {
  if constexpr (past_caches) {
    if (n != lane_count) return write<Lanes, format>(data, at, n, value);
    auto* to = static_cast<typename Storage<format>::Element*>(data) + at;
    if constexpr (format == Format::fp32) value.stream(to);
    if constexpr (format == Format::bf16) value.stream_bf16(to);
    if constexpr (format == Format::fp16) value.stream_fp16(to);
  } else {
    write<Lanes, format>(data, at, n, value);
  }
}

// The bits of the largest of magnitudes (Lanes::larger_magnitudes).
template <typename Lanes>
[[gnu::always_inline]] inline std::uint32_t largest_of(const Lanes& magnitudes) {
  float lanes[lane_count];
  std::uint32_t bits[lane_count];
  magnitudes.store(lanes);
  __builtin_memcpy(bits, lanes, sizeof bits);
  std::uint32_t largest = 0;
  for (const std::uint32_t each : bits) largest = largest > each ? largest : each;
  return largest;
}

// body(at, n) for consecutive blocks; n is a constant in all but the last.
template <typename Body>
[[gnu::always_inline]] inline void for_each_block(std::size_t count, Body body) {
  std::size_t at = 0;
  for (; at + lane_count <= count; at += lane_count) body(at, lane_count);
  if (at < count) body(at, count - at);
}

}  // namespace tessera::kernels
