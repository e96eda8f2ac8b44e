// The Gaussian error linear unit, tanh form.
#include "tessera/nn/gelu.hpp"

#include <cmath>

#include "src/arithmetic.hpp"
#include "src/instantiate.hpp"
#include "src/shapes.hpp"

namespace tessera::nn {

namespace {

template <typename A>
constexpr A scale = static_cast<A>(0.79788456080286535588);  // sqrt(2/π)
template <typename A>
constexpr A cubic = static_cast<A>(0.044715);

template <typename A>
A gelu(A x) {
  const A t = std::tanh(scale<A> * (x + cubic<A> * x * x * x));
  return A(0.5) * x * (1 + t);
}

template <typename A>
A gelu_derivative(A x) {
  const A t = std::tanh(scale<A> * (x + cubic<A> * x * x * x));
  const A inner = scale<A> * (1 + 3 * cubic<A> * x * x);
  return A(0.5) * (1 + t) + A(0.5) * x * (1 - t * t) * inner;
}

}  // namespace

template <Element T>
void gelu_forward(Stream& stream, ConstMatrixView<T> x, MatrixView<T> y) {
  require_shape("gelu: y", y, x.rows, x.columns);
  stream.submit([x, y] {
    for (std::size_t i = 0; i < x.elements(); ++i) y.data[i] = store<T>(gelu(load(x.data[i])));
  });
}

template <Element T>
void gelu_backward(Stream& stream, ConstMatrixView<T> x, ConstMatrixView<T> dy, MatrixView<T> dx) {
  require_shape("gelu: dy", dy, x.rows, x.columns);
  require_shape("gelu: dx", dx, x.rows, x.columns);
  stream.submit([x, dy, dx] {
    for (std::size_t i = 0; i < x.elements(); ++i) {
      dx.data[i] = store<T>(load(dy.data[i]) * gelu_derivative(load(x.data[i])));
    }
  });
}

template <Element T>
typename Gelu<T>::Saved Gelu<T>::forward(LayerWindow window, ActivationStack&, MatrixView<const T> x, MatrixView<T> y) {
  window.enqueue(gelu_forward<T>, x, y);
  return {x};
}

template <Element T>
void Gelu<T>::backward(LayerWindow window, ActivationStack&, const Saved& saved, MatrixView<const T> dy,
                       MatrixView<T> dx) {
  window.enqueue(gelu_backward<T>, saved.x, dy, dx);
}

#define TESSERA_GELU(T)                                                                        \
  template void gelu_forward(Stream&, ConstMatrixView<T>, MatrixView<T>);                      \
  template void gelu_backward(Stream&, ConstMatrixView<T>, ConstMatrixView<T>, MatrixView<T>); \
  template class Gelu<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_GELU)

}  // namespace tessera::nn
