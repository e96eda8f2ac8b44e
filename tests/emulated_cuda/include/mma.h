// CUDA's warp-wide products of 16 × 16 tiles on the CPU: the first lane of a warp holds whole tiles and computes; memory
// changes hands where all lanes have come, so that a missing barrier of a kernel shows as on a GPU.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {
  static constexpr bool by_rows = true;
};
struct col_major {
  static constexpr bool by_rows = false;
};
enum layout_t { mem_row_major, mem_col_major };

// x[row * 16 + column], in the first lane alone.
template <typename Use, int m, int n, int k, typename T, typename Layout = row_major>
struct fragment {
  static_assert(m == 16 && n == 16 && k == 16);
  static constexpr int num_elements = 256;
  float x[num_elements] = {};
};

inline bool first_lane() { return ::emulated::self().rank % 32 == 0; }

inline float widened(float value) { return value; }
inline float widened(__nv_bfloat16 value) { return __bfloat162float(value); }
inline float widened(__half value) { return __half2float(value); }

template <typename T>
void require_aligned(const T* data, unsigned stride) {
  if (reinterpret_cast<std::uintptr_t>(data) % 32 == 0 && stride * sizeof(T) % 16 == 0) return;
  std::fprintf(stderr, "emulated kernel: a tile of a warp-wide product must begin on 32 bytes, its rows on 16\n");
  std::abort();
}

template <typename Use, typename T, typename Layout>
void load_tile(fragment<Use, 16, 16, 16, T, Layout>& to, const T* from, unsigned stride, bool by_rows) {
  require_aligned(from, stride);
  for (unsigned row = 0; first_lane() && row < 16; ++row) {
    for (unsigned column = 0; column < 16; ++column) {
      to.x[row * 16 + column] = widened(from[by_rows ? row * stride + column : column * stride + row]);
    }
  }
  ::emulated::warp_barrier();
}

template <typename Use, typename T, typename Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& to, const T* from, unsigned stride) {
  load_tile(to, from, stride, Layout::by_rows);
}
inline void load_matrix_sync(fragment<accumulator, 16, 16, 16, float>& to, const float* from, unsigned stride,
                             layout_t layout) {
  load_tile(to, from, stride, layout == mem_row_major);
}

inline void store_matrix_sync(float* to, const fragment<accumulator, 16, 16, 16, float>& from, unsigned stride,
                              layout_t layout) {
  require_aligned(to, stride);
  ::emulated::warp_barrier();
  for (unsigned row = 0; first_lane() && row < 16; ++row) {
    for (unsigned column = 0; column < 16; ++column) {
      to[layout == mem_row_major ? row * stride + column : column * stride + row] = from.x[row * 16 + column];
    }
  }
  ::emulated::warp_barrier();
}

inline void fill_fragment(fragment<accumulator, 16, 16, 16, float>& to, float value) {
  for (float& element : to.x) element = value;
}

template <typename A, typename B>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& to, const A& a, const B& b,
              const fragment<accumulator, 16, 16, 16, float>& c) {
  if (!first_lane()) return;
  fragment<accumulator, 16, 16, 16, float> sums = c;
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned k = 0; k < 16; ++k) {
      for (unsigned column = 0; column < 16; ++column) sums.x[row * 16 + column] += a.x[row * 16 + k] * b.x[k * 16 + column];
    }
  }
  to = sums;
}

}  // namespace nvcuda::wmma
