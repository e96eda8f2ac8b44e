// The rectifier.
#include "tessera/nn/relu.hpp"

#include "src/cuda/cuda_layers.hpp"
#include "src/exported.hpp"
#include "src/operation.hpp"
#include "src/rows/active_rows.hpp"
#include "src/shared_rows.hpp"

namespace tessera::nn {

template <Element T>
void relu_forward(Stream& stream, ConstMatrixView<T> x, MatrixView<T> y) {
  require_shape("relu: y", y, x.rows, x.columns);
  enqueue_rows<T, cuda::relu>(stream, "relu", ReluRow{format_of<T>, x.data, nullptr, y.data, x.elements()});
}

template <Element T>
void relu_backward(Stream& stream, ConstMatrixView<T> y, ConstMatrixView<T> dy, MatrixView<T> dx) {
  require_shape("relu: dy", dy, y.rows, y.columns);
  require_shape("relu: dx", dx, y.rows, y.columns);
  enqueue_rows<T, cuda::relu>(stream, "relu", ReluRow{format_of<T>, y.data, dy.data, dx.data, y.elements()});
}

template <Element T>
typename Relu<T>::Saved Relu<T>::forward(Window& window, ActivationStack&, MatrixView<const T> x, MatrixView<T> y) {
  enqueue(window, relu_forward<T>, x, y);
  return {y};
}

template <Element T>
void Relu<T>::backward(Window& window, ActivationStack&, const Saved& saved, MatrixView<const T> dy, MatrixView<T> dx) {
  enqueue(window, relu_backward<T>, saved.y, dy, dx);
}

#define TESSERA_RELU(T)                                                                                         \
  template TESSERA_EXPORTED void relu_forward(Stream&, ConstMatrixView<T>, MatrixView<T>);                      \
  template TESSERA_EXPORTED void relu_backward(Stream&, ConstMatrixView<T>, ConstMatrixView<T>, MatrixView<T>); \
  template class Relu<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_RELU)

}  // namespace tessera::nn
