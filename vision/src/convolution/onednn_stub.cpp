// A build without oneDNN.
#include "nn/src/operation.hpp"
#include "tessera/base/error.hpp"
#include "vision/src/convolution/onednn.hpp"

namespace tessera::vision::convolutions::by_onednn {

template <Element T>
bool convolves() {
  return false;
}
template <Element T>
bool has_kernels(const ConvolutionGeometry&) {
  return false;
}
template <Element T>
void forward(const ConvolutionForwardWork<T>&) {
  throw InternalError("a convolution for oneDNN, which this build does not have");
}
template <Element T>
void backward(const ConvolutionBackwardWork<T>&) {
  throw InternalError("a convolution for oneDNN, which this build does not have");
}
template <Element T>
std::size_t scratch(const ConvolutionGeometry&) {
  return 0;
}

#define TESSERA_CONVOLUTION_BY_ONEDNN(T)                     \
  template bool convolves<T>();                              \
  template bool has_kernels<T>(const ConvolutionGeometry&);  \
  template void forward(const ConvolutionForwardWork<T>&);   \
  template void backward(const ConvolutionBackwardWork<T>&); \
  template std::size_t scratch<T>(const ConvolutionGeometry&);
TESSERA_FOR_EACH_ELEMENT(TESSERA_CONVOLUTION_BY_ONEDNN)

}  // namespace tessera::vision::convolutions::by_onednn
