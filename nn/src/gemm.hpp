// Matrix products: the one door to the BLAS. OpenBLAS was measured against oneDNN 2.6.3 (one thread, three products of
// a layer): 1.3 to 2.5 times as fast on layers of 10 to 128 features, 0.7 to 0.9 times on 512 to 2048, and needs no
// OpenMP.
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
