// Products of one shape, of matrices of bf16 in a device's memory, as one operation: c[n] = a[n] b[n]. Each has the
// bits that it has in a batch of any other size.
#pragma once

#include <cstddef>

#include "tessera/base/half.hpp"
#include "tessera/device/stream.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

struct BatchedOperand {
  const bf16* data;         // row by row
  std::size_t step;         // elements from one matrix to the next
  bool transposed = false;  // stands as the transpose of what the product means
};

struct BatchedProduct {
  BatchedOperand a;  // [m, k]
  BatchedOperand b;  // [k, n]
  bf16* c;           // [m, n]; overlaps nothing
  std::size_t c_step;
  std::size_t m;
  std::size_t n;
  std::size_t k;
  std::size_t count;
  std::size_t most;  // of any batch: by that a CUDA device's algorithm is chosen, and so the bits
  void* scratch;     // batched_product_scratch() bytes
};
// Enqueues. Throws as linear_forward() does.
void multiply(Stream& stream, const BatchedProduct& of);

// How many bytes such products need.
std::size_t batched_product_scratch(std::size_t m, std::size_t n, std::size_t k, std::size_t most, DeviceKind device);

}  // namespace tessera::nn

#pragma GCC visibility pop
