// Matrix products: the one door to the BLAS. OpenBLAS 0.3.21 against oneDNN 2.6.3, one thread, the three products of a
// layer together: 2.1 to 2.3 times as fast with 10 outputs, 0.7 to 0.95 times with 53 to 1024, 1.0 to 1.2 times with
// 2048 (batch 64; 0.6 at batch 16). It was taken because it needs no OpenMP runtime and comes with pkg-config.
#pragma once

#include <cstddef>

namespace tessera::nn {

// A matrix as a product reads it. Rows in memory begin `stride` elements after each other; 0: without gaps.
template <typename T>
struct Operand {
  const T* data;
  bool transposed = false;  // stands as the transpose of what the product means
  std::size_t stride = 0;
};

// c [m, n] = a [m, k] · b [k, n] (+ c when `add`), all row-major; c overlaps nothing. Zero extents are fine, and
// without `add` c is never read. Runs on the calling thread. Throws UsageError for extents that the BLAS cannot count.
//
// float and double go to the BLAS as they are. bf16 and fp16 go there in fp32, tile by tile, and each element of the
// result is rounded once.
template <typename T>
struct Gemm {
  Operand<T> a;
  Operand<T> b;
  T* c;
  std::size_t m;
  std::size_t n;
  std::size_t k;
  bool add = false;
  std::size_t c_stride = 0;  // as in Operand
  float* scratch = nullptr;  // gemm_scratch<T>(m, n, k) floats
};
template <typename T>
void gemm(const Gemm<T>& product);

// How many floats a product of these extents needs: none for float and double, at most three tiles otherwise. Never
// more for smaller extents.
template <typename T>
std::size_t gemm_scratch(std::size_t m, std::size_t n, std::size_t k);

}  // namespace tessera::nn
