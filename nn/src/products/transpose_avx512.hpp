// Sixteen by sixteen numbers of 32 bits, transposed in registers.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace tessera::nn {

// tile[i] lane j becomes tile[j] lane i.
[[gnu::always_inline]] inline void transpose_in_registers(__m512 (&tile)[16]) {
  __m512 quarters[16];
  for (std::size_t i = 0; i < 16; i += 4) {  // 4 × 4 in each quarter
    const __m512 low01 = _mm512_unpacklo_ps(tile[i], tile[i + 1]);
    const __m512 high01 = _mm512_unpackhi_ps(tile[i], tile[i + 1]);
    const __m512 low23 = _mm512_unpacklo_ps(tile[i + 2], tile[i + 3]);
    const __m512 high23 = _mm512_unpackhi_ps(tile[i + 2], tile[i + 3]);
    quarters[i] = _mm512_shuffle_ps(low01, low23, 0x44);
    quarters[i + 1] = _mm512_shuffle_ps(low01, low23, 0xee);
    quarters[i + 2] = _mm512_shuffle_ps(high01, high23, 0x44);
    quarters[i + 3] = _mm512_shuffle_ps(high01, high23, 0xee);
  }
  for (std::size_t i = 0; i < 4; ++i) {  // the quarters
    const __m512 even01 = _mm512_shuffle_f32x4(quarters[i], quarters[4 + i], 0x88);
    const __m512 odd01 = _mm512_shuffle_f32x4(quarters[i], quarters[4 + i], 0xdd);
    const __m512 even23 = _mm512_shuffle_f32x4(quarters[8 + i], quarters[12 + i], 0x88);
    const __m512 odd23 = _mm512_shuffle_f32x4(quarters[8 + i], quarters[12 + i], 0xdd);
    tile[i] = _mm512_shuffle_f32x4(even01, even23, 0x88);
    tile[4 + i] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
    tile[8 + i] = _mm512_shuffle_f32x4(even01, even23, 0xdd);
    tile[12 + i] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
  }
}

}  // namespace tessera::nn
