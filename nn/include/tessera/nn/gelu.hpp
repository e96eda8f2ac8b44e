// The Gaussian error linear unit in its tanh form (Hendrycks & Gimpel 2016, and GPT-2):
//   y = x / 2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))
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
void gelu_forward(Stream& stream, ConstMatrixView<T> x, MatrixView<T> y);  // y may be x
template <Element T>
void gelu_backward(Stream& stream, ConstMatrixView<T> x, ConstMatrixView<T> dy, MatrixView<T> dx);  // dx may be dy

template <Element T>
class Gelu final : public Module {
 public:
  void visit(ModuleVisitor&) override {}

  struct Saved {
    MatrixView<const T> x;
  };
  // y must not be x when backward() follows.
  Saved forward(Window& window, ActivationStack& stack, MatrixView<const T> x, MatrixView<T> y);
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                MatrixView<T> dx);  // dx may be dy
};

}  // namespace tessera::nn

#pragma GCC visibility pop
