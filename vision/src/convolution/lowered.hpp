// Convolutions as matrix products: what the kernel sees at each place of the result becomes a row of a matrix, some
// lines of the result at a time, so that the matrix stays in the caches.
#pragma once

#include "vision/src/convolution/geometry.hpp"

namespace tessera::vision::convolutions::lowered {

// Without the gradient of the bias, which is a sum over rows. On the calling thread and its helpers.
template <Element T>
void forward(const ConvolutionForwardWork<T>& work);
template <Element T>
void backward(const ConvolutionBackwardWork<T>& work);

// Floats, for either.
template <Element T>
std::size_t scratch(const ConvolutionGeometry& of);

}  // namespace tessera::vision::convolutions::lowered
