// Convolutions by oneDNN, in fp32 and in bf16. The images of a batch are shared among the threads of an operation, each
// on its own; sums over the batch are formed share by share, and then in their order.
#pragma once

#include "vision/src/convolution/geometry.hpp"

namespace tessera::vision::convolutions::by_onednn {

// Whether this build has it, and a kernel of its own for such elements on this processor.
template <Element T>
bool convolves();

// Whether it has one for this geometry: what it only has plain loops for is better done by products.
template <Element T>
bool has_kernels(const ConvolutionGeometry& of);

// These do what lowered.hpp does. They throw std::runtime_error when oneDNN fails.
template <Element T>
void forward(const ConvolutionForwardWork<T>& work);
template <Element T>
void backward(const ConvolutionBackwardWork<T>& work);

// Floats, for either. Helpers take memory of their own.
template <Element T>
std::size_t scratch(const ConvolutionGeometry& of);

}  // namespace tessera::vision::convolutions::by_onednn
