// Says what gemm.cpp and rows/active_rows.hpp choose.
#include "tessera/nn/processor.hpp"

#include <cblas.h>
#include <fmt/format.h>

#include "src/cuda/attention_choice.hpp"
#include "src/products/choice.hpp"
#include "src/products/onednn.hpp"
#include "src/products/product.hpp"
#include "tessera/device/parallel.hpp"
#include "tessera/kernels/instruction_set.hpp"

namespace tessera::nn {

namespace {

std::string products_of_bf16(ProductSet set) {
  if (set == ProductSet::onednn) return "by " + onednn::in_words();
  return set == ProductSet::avx512_bf16 ? "for AVX512_BF16" : "as fp32";
}

}  // namespace

std::string computed_with() {
  const ProductSet set = active_product_set();
  const std::string blas = fmt::format("by OpenBLAS for {}", openblas_get_corename());
  const FloatProducts* const ours = active_float_products();
  return fmt::format("rows with {}; products of fp32 {}, of bf16 {}, of fp16 as fp32, of fp64 {}; {} thread{}",
                     to_string(kernels::active_instruction_set()),
                     ours == nullptr ? blas : fmt::format("for {}", ours->name), products_of_bf16(set), blas,
                     parallel::threads(), parallel::threads() == 1 ? "" : "s");
}

std::string computed_with_on_cuda() {
  return fmt::format("products {}; attention {}", cuda::products_in_words(), cuda::attentions::in_words());
}

}  // namespace tessera::nn
