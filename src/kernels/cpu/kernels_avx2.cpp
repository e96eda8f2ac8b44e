// The CPU kernels compiled for AVX2, FMA and F16C: sixteen floats in two registers.
#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/kernels_of_lanes.hpp"

namespace tessera::kernels {

struct Avx2Lanes {
  __m256 low;
  __m256 high;

  static Avx2Lanes all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Avx2Lanes load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static Avx2Lanes load_bf16(const std::uint16_t* from) {
    return {widen_bf16(load_halves(from)), widen_bf16(load_halves(from + 8))};
  }
  static Avx2Lanes load_fp16(const std::uint16_t* from) {
    return {_mm256_cvtph_ps(load_halves(from)), _mm256_cvtph_ps(load_halves(from + 8))};
  }

  static Avx2Lanes load_codes(const std::int8_t* from) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
  }

  void store(float* to) const {
    _mm256_storeu_ps(to, low);
    _mm256_storeu_ps(to + 8, high);
  }
  void store_bf16(std::uint16_t* to) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), as_bf16()); }
  void store_fp16(std::uint16_t* to) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT));
  }

  // Packing saturates, so that the other bytes go first.
  void store_lowest_bytes(std::int8_t* to) const {
    const __m256i byte = _mm256_set1_epi32(0xff);
    const __m256i words = _mm256_packus_epi32(_mm256_and_si256(_mm256_castps_si256(low), byte),
                                              _mm256_and_si256(_mm256_castps_si256(high), byte));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0b11'01'10'00);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
  }

  // Past the caches; `to` is aligned to 32 bytes. fence() comes before anybody else reads.
  void stream(float* to) const {
    _mm256_stream_ps(to, low);
    _mm256_stream_ps(to + 8, high);
  }
  void stream_bf16(std::uint16_t* to) const { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), as_bf16()); }
  void stream_fp16(std::uint16_t* to) const {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT));
  }
  // Two at once, next to each other.
  static void stream_bf16(std::uint16_t* to, Avx2Lanes a, Avx2Lanes b) {
    a.stream_bf16(to);
    b.stream_bf16(to + 16);
  }
  static void stream_fp16(std::uint16_t* to, Avx2Lanes a, Avx2Lanes b) {
    a.stream_fp16(to);
    b.stream_fp16(to + 16);
  }
  static void fence() { _mm_sfence(); }

  float pairwise_sum() const {
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  friend Avx2Lanes operator+(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  friend Avx2Lanes operator-(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  friend Avx2Lanes operator*(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  friend Avx2Lanes operator/(Avx2Lanes a, Avx2Lanes b) {
    return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
  }
  friend Avx2Lanes fma(Avx2Lanes a, Avx2Lanes b, Avx2Lanes c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  friend Avx2Lanes square_root(Avx2Lanes a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }

  // Compares integers, so that NaNs are larger than infinity.
  friend Avx2Lanes larger_magnitudes(Avx2Lanes a, Avx2Lanes b) {
    return {larger_magnitudes(a.low, b.low), larger_magnitudes(a.high, b.high)};
  }

  // add_slices() of kernels/exact_arithmetic.hpp, four numbers at a time. Fused operations give the same, because
  // squares are exact.
  class Slices {
   public:
    explicit Slices(const Rounders& rounders) {
      for (int k = 0; k < 3; ++k) rounder_[k] = _mm256_set1_pd(rounders.of_bin[k]);
    }

    void add(Avx2Lanes x) {
      add(_mm256_cvtps_pd(_mm256_castps256_ps128(x.low)));
      add(_mm256_cvtps_pd(_mm256_extractf128_ps(x.low, 1)));
      add(_mm256_cvtps_pd(_mm256_castps256_ps128(x.high)));
      add(_mm256_cvtps_pd(_mm256_extractf128_ps(x.high, 1)));
    }
    void store(std::uint64_t (&sums)[3]) const {
      for (int k = 0; k < 3; ++k) {
        std::uint64_t lanes[4];
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), sum_[k]);
        sums[k] = lanes[0] + lanes[1] + lanes[2] + lanes[3];
      }
    }

   private:
    void add(__m256d x) {
      const __m256d first = _mm256_fmadd_pd(x, x, rounder_[0]);
      const __m256d after_first = _mm256_fmsub_pd(x, x, _mm256_sub_pd(first, rounder_[0]));
      const __m256d second = _mm256_add_pd(after_first, rounder_[1]);
      const __m256d after_second = _mm256_sub_pd(after_first, _mm256_sub_pd(second, rounder_[1]));
      const __m256d third = _mm256_add_pd(after_second, rounder_[2]);
      sum_[0] = _mm256_add_epi64(sum_[0], _mm256_castpd_si256(first));
      sum_[1] = _mm256_add_epi64(sum_[1], _mm256_castpd_si256(second));
      sum_[2] = _mm256_add_epi64(sum_[2], _mm256_castpd_si256(third));
    }

    __m256d rounder_[3];
    __m256i sum_[3] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
  };

 private:
  static __m256 larger_magnitudes(__m256 a, __m256 b) {
    const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(b), _mm256_set1_epi32(0x7fffffff));
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), magnitude));
  }
  static __m128i load_halves(const std::uint16_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static __m256 widen_bf16(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
  __m256i as_bf16() const {
    const __m256i interleaved = _mm256_packus_epi32(round_to_bf16(low), round_to_bf16(high));  // per 128-bit half
    return _mm256_permute4x64_epi64(interleaved, 0b11'01'10'00);
  }
  // Rounds as bf16(float) of base/half.hpp does; eight results are in the lower halves of eight words.
  static __m256i round_to_bf16(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(nearest, quiet, nan), 16);
  }
};

const KernelTable& avx2_table() { return table_of_lanes<Avx2Lanes>; }

}  // namespace tessera::kernels
