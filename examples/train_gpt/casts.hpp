// Activations of one type for a unit that computes in another. Where the types are the same, nothing is copied.
#pragma once

#include <type_traits>

#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/layer_window.hpp"
#include "tessera/nn/view.hpp"

namespace examples {

// to = from, element by element.
template <typename From, typename To>
void deliver(tessera::nn::LayerWindow window, tessera::nn::MatrixView<From> from, tessera::nn::MatrixView<To> to) {
  using Source = std::remove_const_t<From>;
  if constexpr (!std::is_same_v<Source, To>) {
    window.enqueue(tessera::kernels::cast, {to.data, tessera::dtype_of<To>}, {from.data, tessera::dtype_of<Source>},
                   from.elements());
  }
}

// A place for what is delivered to `y`, or from it: y itself, or memory that is pushed.
template <typename P, typename T>
tessera::nn::MatrixView<P> place_for(tessera::nn::ActivationStack& stack, tessera::nn::MatrixView<T> y) {
  if constexpr (std::is_same_v<P, T>) {
    return y;
  } else {
    return stack.push<P>(y.rows, y.columns);
  }
}

// x as P: x itself, or a copy that is pushed.
template <typename P, typename T>
tessera::nn::MatrixView<const P> read_as(tessera::nn::LayerWindow window, tessera::nn::ActivationStack& stack,
                                         tessera::nn::MatrixView<const T> x) {
  if constexpr (std::is_same_v<P, T>) {
    return x;
  } else {
    const tessera::nn::MatrixView<P> copy = stack.push<P>(x.rows, x.columns);
    deliver(window, x, copy);
    return copy;
  }
}

}  // namespace examples
