// The Gaussian error linear unit: the loops are in rows/exponential_lanes.hpp.
#include "tessera/nn/gelu.hpp"

#include "src/cuda/cuda_layers.hpp"
#include "src/exported.hpp"
#include "src/operation.hpp"
#include "src/rows/active_rows.hpp"
#include "src/shared_rows.hpp"

namespace tessera::nn {

template <Element T>
void gelu_forward(Stream& stream, ConstMatrixView<T> x, MatrixView<T> y) {
  require_shape("gelu: y", y, x.rows, x.columns);
  enqueue_rows<T, cuda::gelu>(stream, "gelu", GeluRow{format_of<T>, x.data, nullptr, y.data, x.elements()});
}

template <Element T>
void gelu_backward(Stream& stream, ConstMatrixView<T> x, ConstMatrixView<T> dy, MatrixView<T> dx) {
  require_shape("gelu: dy", dy, x.rows, x.columns);
  require_shape("gelu: dx", dx, x.rows, x.columns);
  enqueue_rows<T, cuda::gelu>(stream, "gelu", GeluRow{format_of<T>, x.data, dy.data, dx.data, x.elements()});
}

template <Element T>
typename Gelu<T>::Saved Gelu<T>::forward(Window& window, ActivationStack&, MatrixView<const T> x, MatrixView<T> y) {
  enqueue(window, gelu_forward<T>, x, y);
  return {x};
}

template <Element T>
void Gelu<T>::backward(Window& window, ActivationStack&, const Saved& saved, MatrixView<const T> dy, MatrixView<T> dx) {
  enqueue(window, gelu_backward<T>, saved.x, dy, dx);
}

#define TESSERA_GELU(T)                                                                                         \
  template TESSERA_EXPORTED void gelu_forward(Stream&, ConstMatrixView<T>, MatrixView<T>);                      \
  template TESSERA_EXPORTED void gelu_backward(Stream&, ConstMatrixView<T>, ConstMatrixView<T>, MatrixView<T>); \
  template class Gelu<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_GELU)

}  // namespace tessera::nn
