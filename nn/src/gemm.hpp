// Matrix products: the one door to them. fp32 goes to products/ where the processor has AVX-512 or AVX2, and bf16 where
// it multiplies bf16 (AVX512_BF16), or to oneDNN where it has tiles (AMX); all else goes to OpenBLAS, 16-bit types
// widened, which was taken because it needs no OpenMP runtime and comes with pkg-config. Which of them it is depends on
// the processor (products/choice.hpp), and so do the bits; those of libraries depend on the number of threads, too.
#pragma once

#include <cstddef>

#include "tessera/base/half.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

// A matrix as a product reads it. Rows in memory begin `stride` elements after each other; 0: without gaps.
template <typename T>
struct Operand {
  const T* data;
  bool transposed = false;  // stands as the transpose of what the product means
  std::size_t stride = 0;
};

// c [m, n] = a [m, k] · b [k, n] (+ c when `add`), all row-major; c overlaps nothing. Zero extents are fine, and
// without `add` c is never read. Runs on the calling thread and its helpers (parallel.hpp); when it returns, c is
// there. Throws UsageError for extents that the BLAS cannot count.
//
// float and double are multiplied as they are, bf16 and fp16 are summed in fp32, tile by tile, and each element of the
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

// Products of one shape, each of which has the bits that it has alone: of the next one operands and result begin so
// many elements later. Threads share them, which takes less than to share each of them, since it is cut less.
template <typename T>
struct GemmBatch {
  Gemm<T> first;
  std::size_t count;
  std::size_t a_step;
  std::size_t b_step;
  std::size_t c_step;
};
void gemm(const GemmBatch<bf16>& batch);

// How many floats a product of these extents needs: none for float and double, at most three tiles otherwise. Never
// more for smaller extents.
template <typename T>
std::size_t gemm_scratch(std::size_t m, std::size_t n, std::size_t k);

}  // namespace tessera::nn

#pragma GCC visibility pop
