// One matrix product in the terms of cuBLASLt, and the one door to it. A plain struct stands between, so that what is
// asked for can be checked where there is no GPU; the tests link another multiply().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/rows/row_table.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn::cuda {

// The epilogue happens to the sums before they are rounded and stored.
enum class Epilogue {
  none,
  bias,           // vector [d.rows] is added to each column
  gelu_bias,      // aux = sums + vector, d = gelu(aux)
  gelu_gradient,  // d = sums · gelu'(aux)
  bias_gradient,  // vector [d.columns] = the sums of b's rows: Σ over depth of op(b)
};

// Column-major: column c begins c · leading elements after the first. rows × columns as it stands in memory.
struct ColumnMajor {
  const void* data;
  std::size_t rows;
  std::size_t columns;
  std::size_t leading;
  bool transposed = false;  // the product takes its transpose
};

// Memory of the device for a product or a sum, in its stream's order; products run without, too, but slower.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// Products of one shape at once: matrices of the next one begin so many elements later.
struct ProductBatch {
  std::size_t count = 1;
  std::size_t most = 1;  // an algorithm is chosen for so many, at least `count`; so the bits do not depend on it
  std::size_t a_step = 0;
  std::size_t b_step = 0;
  std::size_t d_step = 0;
};

// d = op(a) · op(b) + added, summed up in fp32. No extent is 0.
struct Product {
  Format format;  // of all of them: fp32, bf16 or fp16
  ColumnMajor a;
  ColumnMajor b;
  ColumnMajor d;           // written
  ColumnMajor added = {};  // as d, and may be d itself; without data: nothing
  bool d_in_fp32 = false;  // and what is added, whatever the others are in; without epilogue
  Epilogue epilogue = Epilogue::none;
  void* vector = nullptr;
  ColumnMajor aux = {};     // as d
  bool tf32 = false;        // fp32 operands may be rounded to ten bits of mantissa
  ProductBatch batch = {};  // of more than one at most: without epilogue and what is added
  Workspace workspace = {};
};

// The power of two on which memory begins, at most 256 bytes: more changes nothing to cuBLASLt, with less it leaves out
// algorithms.
inline std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  std::uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

// Enqueues on `native`, a cudaStream_t. The first product of a shape on a thread chooses an algorithm and allocates on
// the host; later ones do not. False when there is no algorithm with this epilogue: nothing was enqueued then. Throws
// Error when there is none without.
bool multiply(void* native, const Product& product);

// ---- from matrices as the layers have them, row by row: a row-major matrix is its own transpose in column-major
// order, so c = a b is asked for as cᵀ = bᵀ aᵀ ----

struct RowMajor {
  const void* data;
  bool transposed = false;  // stands as the transpose of what the product means
  std::size_t stride = 0;   // elements from row to row as it stands; 0: without gaps
};

// c [m, n] = a [m, k] · b [k, n]
struct RowMajorProduct {
  Format format;
  RowMajor a;
  RowMajor b;
  RowMajor c;
  std::size_t m;
  std::size_t n;
  std::size_t k;
};

inline ColumnMajor column_major(const RowMajor& of, std::size_t rows, std::size_t columns) {
  const std::size_t in_memory_rows = of.transposed ? columns : rows;
  const std::size_t in_memory_columns = of.transposed ? rows : columns;
  return {of.data, in_memory_columns, in_memory_rows, of.stride == 0 ? in_memory_columns : of.stride, of.transposed};
}

inline Product column_major(const RowMajorProduct& of) {
  return {.format = of.format,
          .a = column_major(of.b, of.k, of.n),
          .b = column_major(of.a, of.m, of.k),
          .d = column_major(of.c, of.m, of.n)};
}

// Throws UnavailableError, saying what is missing, where products cannot run, and UsageError where the choice of their
// algorithms (product_choice.hpp) is wished for in a wrong way.
void require_products();

std::string products_in_words();  // by what, and how chosen

}  // namespace tessera::nn::cuda

#pragma GCC visibility pop
