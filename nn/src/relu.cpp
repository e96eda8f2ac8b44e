// The rectifier.
#include "tessera/nn/relu.hpp"

#include "src/shapes.hpp"

namespace tessera::nn {

void relu_forward(Stream& stream, ConstMatrixView x, MatrixView y) {
  require_shape("relu: y", y, x.rows, x.columns);
  stream.submit([x, y] {
    // Written so that a NaN fails the comparison and passes through.
    for (std::size_t i = 0; i < x.elements(); ++i) y.data[i] = x.data[i] <= 0.0f ? 0.0f : x.data[i];
  });
}

void relu_backward(Stream& stream, ConstMatrixView y, ConstMatrixView dy, MatrixView dx) {
  require_shape("relu: dy", dy, y.rows, y.columns);
  require_shape("relu: dx", dx, y.rows, y.columns);
  stream.submit([y, dy, dx] {
    for (std::size_t i = 0; i < y.elements(); ++i) dx.data[i] = y.data[i] <= 0.0f ? 0.0f : dy.data[i];
  });
}

MatrixView Relu::forward(Window& window, MatrixView x) {
  relu_forward(window.stream(), x, x);
  y_ = x;
  return x;
}

MatrixView Relu::backward(Window& window, MatrixView dy) {
  relu_backward(window.stream(), y_, dy, dy);
  return dy;
}

}  // namespace tessera::nn
