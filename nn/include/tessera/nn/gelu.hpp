// The Gaussian error linear unit in its tanh form (Hendrycks & Gimpel 2016, and GPT-2):
//   y = x / 2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing.
#pragma once

#include "tessera/nn/matrix.hpp"
#include "tessera/shard/module.hpp"
#include "tessera/shard/window.hpp"

namespace tessera::nn {

void gelu_forward(Stream& stream, ConstMatrixView x, MatrixView y);                        // y may be x
void gelu_backward(Stream& stream, ConstMatrixView x, ConstMatrixView dy, MatrixView dx);  // dx may be dy

class Gelu final : public Module {
 public:
  void visit(ModuleVisitor&) override {}

  // x must stay as it is until backward() has run. The result is this layer's buffer, valid until its next forward().
  MatrixView forward(Window& window, ConstMatrixView x);
  MatrixView backward(Window& window, MatrixView dy);  // overwrites dy

  Bytes activation_bytes() const { return y_.bytes(); }

 private:
  ConstMatrixView x_;  // of the last forward()
  Matrix y_;
};

}  // namespace tessera::nn
