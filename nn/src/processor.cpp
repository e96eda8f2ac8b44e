// Says what gemm.cpp and rows/active_rows.hpp choose.
#include "tessera/nn/processor.hpp"

#include <cblas.h>
#include <fmt/format.h>

#include "src/products/product.hpp"
#include "tessera/device/parallel.hpp"
#include "tessera/kernels/instruction_set.hpp"

namespace tessera::nn {

std::string computed_with() {
  const std::string blas = fmt::format("by OpenBLAS for {}", openblas_get_corename());
  return fmt::format("rows with {}; products of fp32 {}, of bf16 {}, of fp16 as fp32, of fp64 {}; {} thread{}",
                     to_string(kernels::active_instruction_set()),
                     find_float_products() == nullptr ? blas : "for AVX-512",
                     find_multiply_bf16() == nullptr ? "as fp32" : "for AVX512_BF16", blas, parallel::threads(),
                     parallel::threads() == 1 ? "" : "s");
}

}  // namespace tessera::nn
