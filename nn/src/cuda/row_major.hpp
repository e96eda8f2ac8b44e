// From matrices as the layers have them, row by row, to what cuBLASLt counts in columns: a row-major matrix is its own
// transpose in column-major order, so c = a b is asked for as cᵀ = bᵀ aᵀ.
#pragma once

#include "src/cuda/product.hpp"

namespace tessera::nn::cuda {

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

}  // namespace tessera::nn::cuda
