// cast, copy, accumulate and divide for any instruction set.
#pragma once

#include "kernels/cpu/blocks.hpp"

namespace tessera::kernels {

template <typename Lanes, Format to, Format from, bool past_caches>
void cast_as(const CastArguments& a) {
  for_each_block(
      a.count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        if constexpr (past_caches)
          __builtin_prefetch(static_cast<const char*>(a.from) + at * sizeof(typename Storage<from>::Element) + 2048);
        write_result<Lanes, to, past_caches>(a.to, at, n, read<Lanes, from>(a.from, at, n));
      });
  if constexpr (past_caches) Lanes::fence();
}

template <typename Lanes, Format to, Format from>
void cast_between(const CastArguments& a) {
  const bool past_caches = streams(a.to, a.count * sizeof(typename Storage<to>::Element));
  past_caches ? cast_as<Lanes, to, from, true>(a) : cast_as<Lanes, to, from, false>(a);
}

template <typename Lanes, Format to>
void cast_to(const CastArguments& a) {
  switch (a.from_format) {
    case Format::fp32: return cast_between<Lanes, to, Format::fp32>(a);
    case Format::bf16: return cast_between<Lanes, to, Format::bf16>(a);
    case Format::fp16: return cast_between<Lanes, to, Format::fp16>(a);
  }
}

template <typename Lanes>
void cast_lanes(const CastArguments& a) {
  switch (a.to_format) {
    case Format::fp32: return cast_to<Lanes, Format::fp32>(a);
    case Format::bf16: return cast_to<Lanes, Format::bf16>(a);
    case Format::fp16: return cast_to<Lanes, Format::fp16>(a);
  }
}

// Bits as they are: a load and a store change none.
template <typename Lanes>
void copy_lanes(void* to, const void* from, std::size_t bytes) {
  if (!streams(to, bytes)) {
    __builtin_memcpy(to, from, bytes);
    return;
  }
  const std::size_t whole = bytes / sizeof(float) / lane_count * lane_count;
  auto* const target = static_cast<float*>(to);
  auto* const source = static_cast<const float*>(from);
  for (std::size_t at = 0; at < whole; at += lane_count) Lanes::load(source + at).stream(target + at);
  Lanes::fence();
  __builtin_memcpy(target + whole, source + whole, bytes - whole * sizeof(float));
}

template <typename Lanes, Format from>
void accumulate_from(const AccumulateArguments& a) {
  for_each_block(
      a.count, [&](std::size_t at, std::size_t n) __attribute__((always_inline)) {
        write(a.to, at, n, read<Lanes>(a.to, at, n) + read<Lanes, from>(a.from, at, n));
      });
}

template <typename Lanes>
void accumulate_lanes(const AccumulateArguments& a) {
  switch (a.from_format) {
    case Format::fp32: return accumulate_from<Lanes, Format::fp32>(a);
    case Format::bf16: return accumulate_from<Lanes, Format::bf16>(a);
    case Format::fp16: return accumulate_from<Lanes, Format::fp16>(a);
  }
}

template <typename Lanes>
void divide_lanes(float* data, float divisor, std::size_t count) {
  const Lanes by = Lanes::all(divisor);
  for_each_block(
      count, [&](std::size_t at, std::size_t n)
                 __attribute__((always_inline)) { write(data, at, n, read<Lanes>(data, at, n) / by); });
}

}  // namespace tessera::kernels
