// A build without the headers of cuDNN or of cudnn-frontend.
#include "src/cuda/fused_attention.hpp"
#include "src/cuda/library_convolution.hpp"

namespace tessera::nn::cuda {

namespace {
constexpr const char* without_headers = "this build is without its headers";
}

const FusedAttentionLibrary& fused_attention_library() {
  static const FusedAttentionLibrary none{.missing = without_headers, .in_words = {}};
  return none;
}

const ConvolutionLibrary& convolution_library() {
  static const ConvolutionLibrary none{.missing = without_headers, .in_words = {}};
  return none;
}

}  // namespace tessera::nn::cuda
