// On the CPU threads share the batch; cuBLASLt has batches.
#include "src/batched_product.hpp"

#include <algorithm>

#include "src/cuda/cuda_layers.hpp"
#include "src/gemm.hpp"
#include "src/operation.hpp"

namespace tessera::nn {

namespace {

// cᵀ = bᵀ aᵀ: in column-major terms operands change places.
cuda::Product cuda_product(const BatchedProduct& of) {
  cuda::Product product = cuda::column_major({.format = Format::bf16,
                                              .a = {of.a.data, of.a.transposed},
                                              .b = {of.b.data, of.b.transposed},
                                              .c = {of.c},
                                              .m = of.m,
                                              .n = of.n,
                                              .k = of.k});
  product.batch = {.count = of.count, .most = of.most, .a_step = of.b.step, .b_step = of.a.step, .d_step = of.c_step};
  product.workspace = {of.scratch, batched_product_scratch(of.m, of.n, of.k, of.most, DeviceKind::cuda)};
  return product;
}

}  // namespace

void multiply(Stream& stream, const BatchedProduct& of) {
  if (of.count == 0 || of.m == 0 || of.n == 0 || of.k == 0) return;
  if (on_cuda(stream)) {
    cuda::require_products();
    return issue<bf16>(stream, "product", [of](void* native) { cuda::multiply(native, cuda_product(of)); });
  }
  stream.submit([of] {
    gemm({.first = {.a = {of.a.data, of.a.transposed},
                    .b = {of.b.data, of.b.transposed},
                    .c = of.c,
                    .m = of.m,
                    .n = of.n,
                    .k = of.k,
                    .scratch = static_cast<float*>(of.scratch)},
          .count = of.count,
          .a_step = of.a.step,
          .b_step = of.b.step,
          .c_step = of.c_step});
  });
}

std::size_t batched_product_scratch(std::size_t m, std::size_t n, std::size_t k, std::size_t most, DeviceKind device) {
  if (device == DeviceKind::cpu) return gemm_scratch<bf16>(m, n, k) * sizeof(float);
  return cuda::product_workspace_bytes(std::max({m * n, m * k, k * n}) * most);
}

}  // namespace tessera::nn
