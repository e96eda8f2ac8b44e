// The linear layer.
#include "tessera/nn/linear.hpp"

#include <algorithm>

#include "src/gemm.hpp"
#include "src/shapes.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn {

namespace {

void forward_now(const LinearForward& of) {
  const std::size_t out = of.weight.rows;
  if (of.bias != nullptr) {
    for (std::size_t row = 0; row < of.y.rows; ++row) std::copy_n(of.bias, out, of.y.data + row * out);
  }
  gemm({.a = {of.x.data, false},
        .b = {of.weight.data, true},
        .c = of.y.data,
        .m = of.x.rows,
        .n = out,
        .k = of.x.columns,
        .add = of.bias != nullptr});
}

void bias_gradient_now(const LinearBackward& of) {
  const std::size_t out = of.dy.columns;
  if (!of.accumulate) std::fill_n(of.dbias, out, 0.0f);
  for (std::size_t row = 0; row < of.dy.rows; ++row) {
    const float* dy = of.dy.data + row * out;
    for (std::size_t i = 0; i < out; ++i) of.dbias[i] += dy[i];
  }
}

void backward_now(const LinearBackward& of) {
  const std::size_t batch = of.x.rows;
  const std::size_t in = of.weight.columns;
  const std::size_t out = of.weight.rows;
  gemm({.a = {of.dy.data, true},
        .b = {of.x.data, false},
        .c = of.dweight,
        .m = out,
        .n = in,
        .k = batch,
        .add = of.accumulate});
  if (of.dbias != nullptr) bias_gradient_now(of);
  if (of.dx.data != nullptr) {
    gemm({.a = {of.dy.data, false}, .b = {of.weight.data, false}, .c = of.dx.data, .m = batch, .n = in, .k = out});
  }
}

}  // namespace

void linear_forward(Stream& stream, const LinearForward& operation) {
  require_shape("linear: x", operation.x, operation.x.rows, operation.weight.columns);
  require_shape("linear: y", operation.y, operation.x.rows, operation.weight.rows);
  stream.submit([operation] { forward_now(operation); });
}

void linear_backward(Stream& stream, const LinearBackward& operation) {
  require_shape("linear: x", operation.x, operation.x.rows, operation.weight.columns);
  require_shape("linear: dy", operation.dy, operation.x.rows, operation.weight.rows);
  if (operation.dx.data != nullptr) {
    require_shape("linear: dx", operation.dx, operation.x.rows, operation.weight.columns);
  }
  stream.submit([operation] { backward_now(operation); });
}

Linear::Linear(std::size_t in, std::size_t out, LinearOptions options)
    : in_(in), out_(out), weight_({out, in}, Initial::fan_in(in)) {
  if (options.bias) bias_.emplace(Shape{out}, Initial::fan_in(in));
}

void Linear::visit(ModuleVisitor& visitor) {
  visitor("weight", weight_);
  if (bias_) visitor("bias", *bias_);
}

MatrixView Linear::forward(Window& window, ConstMatrixView x) {
  const MatrixView y = y_.reshape(window.stream(), x.rows, out_);
  x_ = x;
  linear_forward(window.stream(), {.x = x,
                                   .weight = {window.parameter(weight_).data(), out_, in_},
                                   .bias = bias_ ? window.parameter(*bias_).data() : nullptr,
                                   .y = y});
  return y;
}

MatrixView Linear::backward(Window& window, ConstMatrixView dy, InputGradient input) {
  if (!x_) throw UsageError("linear: backward() before forward()");
  const bool wanted = input == InputGradient::compute;
  const MatrixView dx = wanted ? dx_.reshape(window.stream(), dy.rows, in_) : MatrixView{};
  linear_backward(window.stream(), {.x = *x_,
                                    .weight = {window.parameter(weight_).data(), out_, in_},
                                    .dy = dy,
                                    .dx = dx,
                                    .dweight = window.gradient(weight_).data(),
                                    .dbias = bias_ ? window.gradient(*bias_).data() : nullptr});
  return dx;
}

}  // namespace tessera::nn
