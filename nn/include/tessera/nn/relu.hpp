// The rectifier: y = max(x, 0); its gradient at 0 is 0. A NaN stays one.
// The functions enqueue on the stream, capture everything by value, do not synchronise and allocate nothing.
#pragma once

#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/module.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

template <Element T>
void relu_forward(Stream& stream, ConstMatrixView<T> x, MatrixView<T> y);  // y may be x
template <Element T>
void relu_backward(Stream& stream, ConstMatrixView<T> y, ConstMatrixView<T> dy, MatrixView<T> dx);  // dx may be dy

template <Element T>
class Relu final : public Module {
 public:
  void visit(ModuleVisitor&) override {}

  struct Saved {
    MatrixView<const T> y;
  };
  Saved forward(Window& window, ActivationStack& stack, MatrixView<const T> x, MatrixView<T> y);  // y may be x
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                MatrixView<T> dx);  // dx may be dy
};

}  // namespace tessera::nn

#pragma GCC visibility pop
