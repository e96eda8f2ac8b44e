// Matrix products in fp32 on one thread, for processors with AVX-512: made for the products of a training step, of
// which one operand is much larger than the other, and is used once. The larger one is not rearranged where that can be
// helped.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::nn {

// c [rows, columns] (+)= a [rows, depth] · b [depth, columns]. Of the two strides of a matrix one is 1. Extents are at
// least 1. Every element is a sum over the depth in order, from fused multiply-adds, in parts of depth_block() that are
// added in order: its bits depend on the extents alone.
template <typename Number>
struct ProductOf {
  const Number* a;
  std::size_t a_row;  // elements from row to row
  std::size_t a_depth;
  const Number* b;
  std::size_t b_depth;
  std::size_t b_column;
  float* c;
  std::size_t c_row;
  std::size_t c_column;
  std::size_t rows;
  std::size_t columns;
  std::size_t depth;
  bool add;
};

using Product = ProductOf<float>;

// How many floats of scratch memory any product needs, aligned to 64 bytes.
inline constexpr std::size_t product_scratch = (1 << 18) + (1 << 14);

using MultiplyFunction = void (*)(const Product&, float* scratch);
void multiply_avx512(const Product& product, float* scratch);
// The function for this processor; null: there is none, and the BLAS must do.
MultiplyFunction find_multiply();

// The same of matrices of bf16, given by their bits, for processors with AVX512_BF16. Sums are formed in fp32 from
// pairs of products (VDPBF16PS), which takes denormal numbers for zero. depth at most 512, columns at most 512; one of
// c's strides is 1.
using PairProduct = ProductOf<std::uint16_t>;

using MultiplyPairsFunction = void (*)(const PairProduct&, float* scratch);
void multiply_bf16_avx512(const PairProduct& product, float* scratch);
MultiplyPairsFunction find_multiply_bf16();

}  // namespace tessera::nn
