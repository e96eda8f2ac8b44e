// Matrix products, summed in fp32, on the calling thread, for processors with AVX-512 or AVX2: made for the products of
// a training step, of which one operand is much larger than the other, and is used once. The larger one is not
// rearranged where that can be helped.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/base/half.hpp"
#include "tessera/kernels/instruction_set.hpp"

namespace tessera::nn {

// c [rows, columns] (+)= a [rows, depth] · b [depth, columns]. Of the two strides of a matrix one is 1. Extents are at
// least 1. Every element is a sum over the depth in order, from fused multiply-adds, in parts of `block_depth` that are
// added in order: its bits depend on nothing else.
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
  std::size_t block_depth = 0;  // 0: as the extents suggest, see FloatProducts; of fp32 alone
  // The scratch memory's last product had the same b, depth and block_depth, so what it rearranged of b may stand there
  // still; of fp32 alone.
  bool b_stands = false;
};

using Product = ProductOf<float>;

// How many floats of scratch memory any product needs, aligned to 64 bytes.
inline constexpr std::size_t product_scratch = (1 << 18) + (1 << 14) + 192;

// The functions of an instruction set.
struct FloatProducts {
  const char* name;  // of the set, for messages
  void (*multiply)(const Product&, float* scratch);
  // Matrices of 16 bits, each number widened, in parts of 512 of the depth.
  void (*multiply_bf16)(const ProductOf<bf16>&, float* scratch);
  void (*multiply_fp16)(const ProductOf<fp16>&, float* scratch);
  // Into what parts the depth of a product of these extents is cut. Of a product that is itself cut into several, to
  // have the same bits, this must be the whole one's.
  std::size_t (*block_depth)(const Product&);
};
const FloatProducts& avx2_products();
const FloatProducts& avx512_products();
// Null where the set has none, or the processor has not the set: the BLAS must do.
const FloatProducts* find_float_products(kernels::InstructionSet set);

// The same of matrices of bf16, given by their bits, for processors with AVX512_BF16. Sums are formed in fp32 from
// pairs of products (VDPBF16PS), which takes denormal numbers for zero. depth at most 512, columns at most 512; one of
// c's strides is 1.
using PairProduct = ProductOf<std::uint16_t>;

void multiply_bf16_avx512(const PairProduct& product, float* scratch);

// Where a product's sums go rounded to bf16, as its bits, straight from the registers: instead of into the product's c,
// and without `add`.
struct RoundedResult {
  std::uint16_t* c = nullptr;
  std::size_t row = 0;  // elements from row to row
  bool stream = false;  // past the caches, where c's lines allow it
};
void multiply_rounded_bf16_avx512(const PairProduct& product, const RoundedResult& result, float* scratch);

// The functions for a processor.
struct PairProducts {
  void (*multiply)(const PairProduct&, float* scratch);
  void (*multiply_rounded)(const PairProduct&, const RoundedResult&, float* scratch);
};
// Null: this one does not multiply bf16.
const PairProducts* find_pair_products();

}  // namespace tessera::nn
