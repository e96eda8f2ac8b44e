// The contestants of bench/products: each multiplies a [m, k] by b [k, n] into c [m, n], all in memory of the caller's.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/dtype.hpp"

namespace bench {

// A matrix of the product; one of its strides is 1.
struct Factor {
  void* data;
  std::size_t row_stride;
  std::size_t column_stride;
};

struct PlainProduct {
  tessera::DType type;  // of all three; sums are fp32
  Factor a;
  Factor b;
  void* c;  // row by row
  std::size_t m;
  std::size_t n;
  std::size_t k;
};

struct Contestant {
  std::string name;
  std::function<void()> run;
};

// OpenBLAS, which has fp32 alone, and oneDNN, where it is. Prepared: what need not be done in every step is done. On so
// many threads.
std::vector<Contestant> libraries(const PlainProduct& product, int threads);

// None: not in this build, or not of this type on this processor.
std::optional<std::function<void()>> onednn_product(const PlainProduct& product, int threads);
// The version of oneDNN and its instruction set, or "without oneDNN".
std::string onednn_in_words();

// So many operations as fused multiply-adds on registers, in the instruction set in use, on the calling thread. None:
// not of this one.
std::optional<std::function<void()>> multiply_adds(std::size_t operations);

}  // namespace bench
