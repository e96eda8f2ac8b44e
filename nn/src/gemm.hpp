// Matrix products: the one door to the BLAS. OpenBLAS 0.3.21 against oneDNN 2.6.3, one thread, the three products of a
// layer together: 2.1 to 2.3 times as fast with 10 outputs, 0.7 to 0.95 times with 53 to 1024, 1.0 to 1.2 times with
// 2048 (batch 64; 0.6 at batch 16). It was taken because it needs no OpenMP runtime and comes with pkg-config.
#pragma once

#include <cstddef>

namespace tessera::nn {

struct Operand {
  const float* data;
  bool transposed;  // stands as the transpose of what the product means
};

// c [m, n] = a [m, k] · b [k, n] (+ c when `add`). All row-major without gaps; c overlaps nothing. Zero extents are
// fine, and without `add` c is never read. Runs on the calling thread. Throws UsageError for extents that the BLAS
// cannot count.
struct Gemm {
  Operand a;
  Operand b;
  float* c;
  std::size_t m;
  std::size_t n;
  std::size_t k;
  bool add = false;
};
void gemm(const Gemm& product);

}  // namespace tessera::nn
