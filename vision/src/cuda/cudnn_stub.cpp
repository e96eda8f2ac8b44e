// A build without the headers of cuDNN or of cudnn-frontend.
#include "vision/src/cuda/library_convolution.hpp"

namespace tessera::vision::cuda {

const ConvolutionLibrary& convolution_library() {
  static const ConvolutionLibrary none{.missing = "this build is without its headers", .in_words = {}};
  return none;
}

}  // namespace tessera::vision::cuda
