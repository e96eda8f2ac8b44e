// A transformer's feed-forward network: linear, GELU, linear.
#pragma once

#include <cstddef>

#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/module.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

struct FeedForwardOptions {
  std::size_t dim;
  std::size_t hidden;
  float projection_deviation;  // of the second layer's initial weights; the first one's have 0.02
  Slices slices = {};          // of hidden values
};

template <Element T>
class FeedForward final : public Module {
 public:
  explicit FeedForward(const FeedForwardOptions& options);  // weights start as normal(0, deviation), biases as zeros

  void visit(ModuleVisitor& visitor) override;  // "c_fc" [hidden, dim], "c_proj" [dim, hidden]

  struct Saved {
    typename Linear<T>::Saved fc;
    MatrixView<const T> sums;  // what GELU got
    typename Linear<T>::Saved proj;
  };
  // x and y [rows, dim]; with slices, this rank's rows of `all`.
  Saved forward(Window& window, ActivationStack& stack, MatrixView<const T> x, Target<T> y, std::size_t all = 0);
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                MatrixView<T> dx);  // dx may be dy
  struct Between {
    typename Linear<T>::Between fc;
    typename Linear<T>::Between proj;
  };
  Between backward_input(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                         MatrixView<T> dx);  // dx is not dy
  void backward_parameters(Window& window, ActivationStack& stack, const Saved& saved, const Between& between);

 private:
  Slices slices_;
  Linear<T> fc_;
  Linear<T> proj_;
};

}  // namespace tessera::nn

#pragma GCC visibility pop
