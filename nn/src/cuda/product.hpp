// One matrix product in the terms of cuBLASLt, and the one door to it. A plain struct stands between, so that what is
// asked for can be checked where there is no GPU; the tests link another multiply().
#pragma once

#include <cstddef>

#include "src/rows/row_table.hpp"

namespace tessera::nn::cuda {

// What happens to the sums before they are rounded and stored.
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

// d = op(a) · op(b) (+ d when `add`), summed up in fp32. No extent is 0.
struct Product {
  Format format;  // of all of them: fp32, bf16 or fp16
  ColumnMajor a;
  ColumnMajor b;
  ColumnMajor d;  // written
  bool add = false;
  Epilogue epilogue = Epilogue::none;
  void* vector = nullptr;
  ColumnMajor aux = {};  // as d
  bool tf32 = false;     // fp32 operands may be rounded to ten bits of mantissa
  Workspace workspace = {};
};

// Enqueues on `native`, a cudaStream_t. The first product of a shape on a thread chooses an algorithm and allocates on
// the host; later ones do not. False when there is no algorithm with this epilogue: nothing was enqueued then. Throws
// Error when there is none without.
bool multiply(void* native, const Product& product);

// Throws UnavailableError, saying what is missing, where products cannot run.
void require_products();

}  // namespace tessera::nn::cuda
