// The rectifier: y = max(x, 0); its gradient at 0 is 0. A NaN stays one.
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing.
#pragma once

#include "tessera/nn/matrix.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/window.hpp"

namespace tessera::nn {

void relu_forward(Stream& stream, ConstMatrixView x, MatrixView y);                        // y may be x
void relu_backward(Stream& stream, ConstMatrixView y, ConstMatrixView dy, MatrixView dx);  // dx may be dy

// Works in place, on its caller's buffers: it holds no activations of its own.
class Relu final : public Module {
 public:
  void visit(ModuleVisitor&) override {}

  MatrixView forward(Window& window, MatrixView x);    // overwrites x, which must then stay until backward() has run
  MatrixView backward(Window& window, MatrixView dy);  // overwrites dy

 private:
  ConstMatrixView y_;  // of the last forward()
};

}  // namespace tessera::nn
