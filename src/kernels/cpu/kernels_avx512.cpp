// The CPU kernels compiled for AVX-512 (F, BW, VL, DQ): sixteen floats in one register.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/kernels_of_lanes.hpp"

namespace tessera::kernels {

struct Avx512Lanes {
  __m512 value;

  static Avx512Lanes all(float value) { return {_mm512_set1_ps(value)}; }
  static Avx512Lanes load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Avx512Lanes load_bf16(const std::uint16_t* from) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_halves(from)), 16))};
  }
  static Avx512Lanes load_fp16(const std::uint16_t* from) { return {_mm512_cvtph_ps(load_halves(from))}; }

  static Avx512Lanes load_codes(const std::int8_t* from) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))))};
  }

  void store(float* to) const { _mm512_storeu_ps(to, value); }
  void store_bf16(std::uint16_t* to) const { store_halves(to, round_to_bf16()); }
  void store_fp16(std::uint16_t* to) const { store_halves(to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT)); }

  void store_lowest_bytes(std::int8_t* to) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_castps_si512(value)));
  }

  // Past the caches; `to` is aligned to 32 bytes, floats to 64. fence() comes before anybody else reads.
  void stream(float* to) const { _mm512_stream_ps(to, value); }
  void stream_bf16(std::uint16_t* to) const { stream_halves(to, round_to_bf16()); }
  void stream_fp16(std::uint16_t* to) const { stream_halves(to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT)); }
  // Two at once, a whole line, to which `to` is aligned.
  static void stream_bf16(std::uint16_t* to, Avx512Lanes a, Avx512Lanes b) {
    stream_line(to, a.round_to_bf16(), b.round_to_bf16());
  }
  static void stream_fp16(std::uint16_t* to, Avx512Lanes a, Avx512Lanes b) {
    stream_line(to, _mm512_cvtps_ph(a.value, _MM_FROUND_TO_NEAREST_INT),
                _mm512_cvtps_ph(b.value, _MM_FROUND_TO_NEAREST_INT));
  }
  static void fence() { _mm_sfence(); }

  float pairwise_sum() const {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  friend Avx512Lanes operator+(Avx512Lanes a, Avx512Lanes b) { return {_mm512_add_ps(a.value, b.value)}; }
  friend Avx512Lanes operator-(Avx512Lanes a, Avx512Lanes b) { return {_mm512_sub_ps(a.value, b.value)}; }
  friend Avx512Lanes operator*(Avx512Lanes a, Avx512Lanes b) { return {_mm512_mul_ps(a.value, b.value)}; }
  friend Avx512Lanes operator/(Avx512Lanes a, Avx512Lanes b) { return {_mm512_div_ps(a.value, b.value)}; }
  friend Avx512Lanes fma(Avx512Lanes a, Avx512Lanes b, Avx512Lanes c) {
    return {_mm512_fmadd_ps(a.value, b.value, c.value)};
  }
  friend Avx512Lanes square_root(Avx512Lanes a) { return {_mm512_sqrt_ps(a.value)}; }

  // Compares integers, so that NaNs are larger than infinity.
  friend Avx512Lanes larger_magnitudes(Avx512Lanes a, Avx512Lanes b) {
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(b.value), _mm512_set1_epi32(0x7fffffff));
    return {_mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a.value), magnitude))};
  }

  // add_slices() of kernels/exact_arithmetic.hpp, eight numbers at a time. Fused operations give the same, because
  // squares are exact.
  class Slices {
   public:
    explicit Slices(const Rounders& rounders) {
      for (int k = 0; k < 3; ++k) rounder_[k] = _mm512_set1_pd(rounders.of_bin[k]);
    }

    void add(Avx512Lanes x) {
      add(_mm512_cvtps_pd(_mm512_castps512_ps256(x.value)));
      add(_mm512_cvtps_pd(_mm512_extractf32x8_ps(x.value, 1)));
    }
    void store(std::uint64_t (&sums)[3]) const {
      for (int k = 0; k < 3; ++k) {  // _mm512_reduce_add_epi64 would add signed numbers, which may not overflow
        std::uint64_t lanes[8];
        _mm512_storeu_si512(lanes, sum_[k]);
        sums[k] = 0;
        for (const std::uint64_t lane : lanes) sums[k] += lane;
      }
    }

   private:
    void add(__m512d x) {
      const __m512d first = _mm512_fmadd_pd(x, x, rounder_[0]);
      const __m512d after_first = _mm512_fmsub_pd(x, x, _mm512_sub_pd(first, rounder_[0]));
      const __m512d second = _mm512_add_pd(after_first, rounder_[1]);
      const __m512d after_second = _mm512_sub_pd(after_first, _mm512_sub_pd(second, rounder_[1]));
      const __m512d third = _mm512_add_pd(after_second, rounder_[2]);
      sum_[0] = _mm512_add_epi64(sum_[0], _mm512_castpd_si512(first));
      sum_[1] = _mm512_add_epi64(sum_[1], _mm512_castpd_si512(second));
      sum_[2] = _mm512_add_epi64(sum_[2], _mm512_castpd_si512(third));
    }

    __m512d rounder_[3];
    __m512i sum_[3] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
  };

 private:
  static __m256i load_halves(const std::uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store_halves(std::uint16_t* to, __m256i halves) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }
  static void stream_halves(std::uint16_t* to, __m256i halves) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), halves);
  }
  static void stream_line(std::uint16_t* to, __m256i low, __m256i high) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
  }
  // Rounds as bf16(float) of base/half.hpp does. The instruction vcvtneps2bf16 is no help: it flushes subnormal
  // numbers.
  __m256i round_to_bf16() const {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i nearest = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(nearest, nan, quiet), 16));
  }
};

const KernelTable& avx512_table() { return table_of_lanes<Avx512Lanes>; }

}  // namespace tessera::kernels
