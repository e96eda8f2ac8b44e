// The Gaussian error linear unit, tanh form.
#include "tessera/nn/gelu.hpp"

#include <cmath>

#include "src/shapes.hpp"

namespace tessera::nn {

namespace {

constexpr float scale = 0.7978845608028654f;  // sqrt(2/π)
constexpr float cubic = 0.044715f;

float gelu(float x) {
  const float t = std::tanh(scale * (x + cubic * x * x * x));
  return 0.5f * x * (1.0f + t);
}

float gelu_derivative(float x) {
  const float t = std::tanh(scale * (x + cubic * x * x * x));
  const float inner = scale * (1.0f + 3.0f * cubic * x * x);
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}

}  // namespace

void gelu_forward(Stream& stream, ConstMatrixView x, MatrixView y) {
  require_shape("gelu: y", y, x.rows, x.columns);
  stream.submit([x, y] {
    for (std::size_t i = 0; i < x.elements(); ++i) y.data[i] = gelu(x.data[i]);
  });
}

void gelu_backward(Stream& stream, ConstMatrixView x, ConstMatrixView dy, MatrixView dx) {
  require_shape("gelu: dy", dy, x.rows, x.columns);
  require_shape("gelu: dx", dx, x.rows, x.columns);
  stream.submit([x, dy, dx] {
    for (std::size_t i = 0; i < x.elements(); ++i) dx.data[i] = dy.data[i] * gelu_derivative(x.data[i]);
  });
}

MatrixView Gelu::forward(Window& window, ConstMatrixView x) {
  const MatrixView y = y_.reshape(window.stream(), x.rows, x.columns);
  x_ = x;
  gelu_forward(window.stream(), x, y);
  return y;
}

MatrixView Gelu::backward(Window& window, MatrixView dy) {
  gelu_backward(window.stream(), x_, dy, dy);
  return dy;
}

}  // namespace tessera::nn
