// The linear layer on CUDA devices: products with what comes after them in their epilogues, or as kernels of their own
// where cuBLASLt has no algorithm with the epilogue.
#include "src/cuda/cuda_layers.hpp"

namespace tessera::nn::cuda {

namespace {

Product product_of(const RowMajorProduct& shape, bool tf32, const Workspace& scratch) {
  Product product = column_major(shape);
  product.tf32 = tf32;
  product.workspace = scratch;
  return product;
}

bool multiply_with(void* native, Product product, Epilogue epilogue, const void* vector) {
  product.epilogue = epilogue;
  product.vector = const_cast<void*>(vector);
  return multiply(native, product);
}

void add_residual(void* native, const LinearForwardRows& a) {
  if (a.residual != nullptr) add(native, {a.format, a.residual, a.y, a.y, a.batch * a.out});
}

// y = product + bias + residual: in one product, or in two steps more where none has both.
void multiply_and_add(void* native, const LinearForwardRows& a, Product product) {
  const ColumnMajor y = product.d;
  product.added = a.residual == nullptr ? ColumnMajor{} : y;
  product.added.data = a.residual;
  if (a.bias == nullptr) {
    multiply(native, product);
  } else if (!multiply_with(native, product, Epilogue::bias, a.bias)) {
    spread_row(native, {a.format, a.bias, a.y, a.batch, a.out});
    product.added = y;
    multiply(native, product);
    add_residual(native, a);
  }
}

bool fused_gelu(void* native, const LinearForwardRows& a, Product product) {
  if (a.gelu == nullptr || a.bias == nullptr) return false;
  product.aux = product.d;
  product.d.data = a.gelu;
  return multiply_with(native, product, Epilogue::gelu_bias, a.bias);
}

Product weight_gradient_product(const LinearBackwardRows& a) {
  return product_of({.format = a.format,
                     .a = {a.dy, true, a.dy_stride},
                     .b = {a.x},
                     .c = {a.dweight},
                     .m = a.out,
                     .n = a.in,
                     .k = a.batch},
                    a.tf32, a.scratch);
}

void weight_gradient(void* native, const LinearBackwardRows& a) {
  if (a.dweight == nullptr || a.in == 0) return;
  if (a.batch == 0) {
    if (!a.accumulate) spread_row(native, {a.format, nullptr, a.dweight, a.out, a.in});
    return;
  }
  Product product = weight_gradient_product(a);
  if (a.accumulate) product.added = product.d;
  multiply(native, product);
}

// Both at once where that can be; false: neither.
bool fused_parameter_gradients(void* native, const LinearBackwardRows& a) {
  if (a.dweight == nullptr || a.dbias == nullptr || a.accumulate || a.batch == 0 || a.in == 0) return false;
  const Product product = weight_gradient_product(a);
  return multiply_with(native, product, Epilogue::bias_gradient, a.dbias);
}

void input_gradient(void* native, const LinearBackwardRows& a) {
  if (a.dx == nullptr || a.batch == 0 || a.in == 0) return;
  Product product = product_of({.format = a.format,
                                .a = {a.dy, false, a.dy_stride},
                                .b = {a.weight},
                                .c = {a.dx},
                                .m = a.batch,
                                .n = a.in,
                                .k = a.out},
                               a.tf32, a.scratch);
  product.aux = product.d;
  product.aux.data = a.gelu_x;
  if (a.gelu_x != nullptr && multiply_with(native, product, Epilogue::gelu_gradient, nullptr)) return;
  multiply(native, product);
  if (a.gelu_x != nullptr) gelu(native, {a.format, a.gelu_x, a.dx, a.dx, a.batch * a.in});
}

}  // namespace

void linear_forward(void* native, const LinearForwardRows& a) {
  if (a.batch == 0 || a.out == 0) return;
  bool with_gelu = false;
  if (a.in == 0) {
    spread_row(native, {a.format, a.bias, a.y, a.batch, a.out});
    add_residual(native, a);
  } else {
    const Product product = product_of({.format = a.format,
                                        .a = {a.x},
                                        .b = {a.weight, true},
                                        .c = {a.y, false, a.y_stride},
                                        .m = a.batch,
                                        .n = a.out,
                                        .k = a.in},
                                       a.tf32, a.scratch);
    with_gelu = fused_gelu(native, a, product);
    if (!with_gelu) multiply_and_add(native, a, product);
  }
  if (a.gelu != nullptr && !with_gelu) gelu(native, {a.format, a.y, nullptr, a.gelu, a.batch * a.out});
}

void linear_backward(void* native, const LinearBackwardRows& a) {
  if (a.out == 0) {
    if (a.dx != nullptr) spread_row(native, {a.format, nullptr, a.dx, a.batch, a.in});
    return;
  }
  if (!fused_parameter_gradients(native, a)) {
    weight_gradient(native, a);
    if (a.dbias != nullptr) {
      column_sums(native, {.format = a.format,
                           .from = a.dy,
                           .to = a.dbias,
                           .rows = a.batch,
                           .columns = a.out,
                           .accumulate = a.accumulate,
                           .scratch = static_cast<float*>(a.scratch.data)});
    }
  }
  input_gradient(native, a);
}

}  // namespace tessera::nn::cuda
