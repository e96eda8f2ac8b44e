// The floats of one register, in AVX-512 or in AVX2, whichever the source is compiled for, and the tile of a product
// that registers hold: two of them wide, and as high as leaves room for one step's operands. Numbers of 16 bits become
// floats as they are loaded.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include "src/products/transpose_avx512.hpp"
#endif
#include "tessera/base/half.hpp"

namespace tessera::nn {

namespace {  // each set's code is its own

#if defined(__AVX512F__)

using Floats = __m512;
constexpr std::size_t vector = 16;
constexpr std::size_t tile_rows = 12;

[[gnu::always_inline]] inline __mmask16 first_lanes(std::size_t count) {
  return static_cast<__mmask16>((1u << (count < vector ? count : vector)) - 1u);
}

[[gnu::always_inline]] inline Floats zeros() { return _mm512_setzero_ps(); }
[[gnu::always_inline]] inline Floats in_all_lanes(float value) { return _mm512_set1_ps(value); }
[[gnu::always_inline]] inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
[[gnu::always_inline]] inline Floats load_aligned(const float* from) { return _mm512_load_ps(from); }
[[gnu::always_inline]] inline void store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
[[gnu::always_inline]] inline void store_aligned(float* to, Floats value) { _mm512_store_ps(to, value); }
[[gnu::always_inline]] inline void store_past_caches(float* to, Floats value) { _mm512_stream_ps(to, value); }
[[gnu::always_inline]] inline Floats sum_of(Floats a, Floats b) { return _mm512_add_ps(a, b); }
[[gnu::always_inline]] inline Floats product_and_sum(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

// These take the first `count` lanes, or all; the others are loaded as zeros and not stored.
[[gnu::always_inline]] inline Floats load_first(const float* from, std::size_t count) {
  return _mm512_maskz_loadu_ps(first_lanes(count), from);
}
[[gnu::always_inline]] inline void store_first(float* to, Floats value, std::size_t count) {
  _mm512_mask_storeu_ps(to, first_lanes(count), value);
}

[[gnu::always_inline]] inline Floats floats_of(const bf16*, __m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
[[gnu::always_inline]] inline Floats floats_of(const fp16*, __m256i bits) { return _mm512_cvtph_ps(bits); }
template <typename Half>
[[gnu::always_inline]] inline Floats load_first(const Half* from, std::size_t count) {
  return floats_of(from, _mm256_maskz_loadu_epi16(first_lanes(count), from));
}
template <typename Number>
[[gnu::always_inline]] inline void copy_rows_of_tile(const Number* from, float* to) {
  store_first(to, load_first(from, tile_rows), tile_rows);
}

#else

using Floats = __m256;
constexpr std::size_t vector = 8;
constexpr std::size_t tile_rows = 6;

[[gnu::always_inline]] inline __m256i first_lanes(std::size_t count) {
  constexpr std::int32_t all = -1;
  alignas(32) static constexpr std::int32_t lanes[2 * vector] = {all, all, all, all, all, all, all, all};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes + vector - (count < vector ? count : vector)));
}

[[gnu::always_inline]] inline Floats zeros() { return _mm256_setzero_ps(); }
[[gnu::always_inline]] inline Floats in_all_lanes(float value) { return _mm256_set1_ps(value); }
[[gnu::always_inline]] inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
[[gnu::always_inline]] inline Floats load_aligned(const float* from) { return _mm256_load_ps(from); }
[[gnu::always_inline]] inline void store(float* to, Floats value) { _mm256_storeu_ps(to, value); }
[[gnu::always_inline]] inline void store_aligned(float* to, Floats value) { _mm256_store_ps(to, value); }
[[gnu::always_inline]] inline void store_past_caches(float* to, Floats value) { _mm256_stream_ps(to, value); }
[[gnu::always_inline]] inline Floats sum_of(Floats a, Floats b) { return _mm256_add_ps(a, b); }
[[gnu::always_inline]] inline Floats product_and_sum(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

// These take the first `count` lanes, or all; the others are loaded as zeros and not stored.
[[gnu::always_inline]] inline Floats load_first(const float* from, std::size_t count) {
  return _mm256_maskload_ps(from, first_lanes(count));
}
[[gnu::always_inline]] inline void store_first(float* to, Floats value, std::size_t count) {
  _mm256_maskstore_ps(to, first_lanes(count), value);
}
// Without a mask, with which some processors store slowly.
[[gnu::always_inline]] inline void copy_rows_of_tile(const float* from, float* to) {
  _mm_storeu_ps(to, _mm_loadu_ps(from));
  _mm_storel_pi(reinterpret_cast<__m64*>(to + 4),
                _mm_loadl_pi(_mm_setzero_ps(), reinterpret_cast<const __m64*>(from + 4)));
}

[[gnu::always_inline]] inline Floats floats_of(const bf16*, __m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
[[gnu::always_inline]] inline Floats floats_of(const fp16*, __m128i bits) { return _mm256_cvtph_ps(bits); }
template <typename Half>
[[gnu::always_inline]] inline Floats load_first(const Half* from, std::size_t count) {
  if (count >= vector) return floats_of(from, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  alignas(16) Half lanes[vector] = {};
  std::memcpy(lanes, from, count * sizeof(Half));
  return floats_of(from, _mm_load_si128(reinterpret_cast<const __m128i*>(lanes)));
}
template <typename Half>
[[gnu::always_inline]] inline void copy_rows_of_tile(const Half* from, float* to) {
  std::int32_t last = 0;
  std::memcpy(&last, from + 4, sizeof last);
  const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  const Floats value = floats_of(from, _mm_insert_epi32(first, last, 2));
  _mm_storeu_ps(to, _mm256_castps256_ps128(value));
  _mm_storel_pi(reinterpret_cast<__m64*>(to + 4), _mm256_extractf128_ps(value, 1));
}

// tile[i] lane j becomes tile[j] lane i.
[[gnu::always_inline]] inline void transpose_in_registers(Floats (&tile)[vector]) {
  Floats quarters[vector];
  for (std::size_t i = 0; i < vector; i += 4) {  // 4 × 4 in each quarter
    const Floats low01 = _mm256_unpacklo_ps(tile[i], tile[i + 1]);
    const Floats high01 = _mm256_unpackhi_ps(tile[i], tile[i + 1]);
    const Floats low23 = _mm256_unpacklo_ps(tile[i + 2], tile[i + 3]);
    const Floats high23 = _mm256_unpackhi_ps(tile[i + 2], tile[i + 3]);
    quarters[i] = _mm256_shuffle_ps(low01, low23, 0x44);
    quarters[i + 1] = _mm256_shuffle_ps(low01, low23, 0xee);
    quarters[i + 2] = _mm256_shuffle_ps(high01, high23, 0x44);
    quarters[i + 3] = _mm256_shuffle_ps(high01, high23, 0xee);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    tile[i] = _mm256_permute2f128_ps(quarters[i], quarters[4 + i], 0x20);
    tile[4 + i] = _mm256_permute2f128_ps(quarters[i], quarters[4 + i], 0x31);
  }
}

#endif

}  // namespace

}  // namespace tessera::nn
