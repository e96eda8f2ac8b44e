// A build without the headers of cuDNN or of cudnn-frontend.
#include "src/cuda/fused_attention.hpp"

namespace tessera::nn::cuda {

const FusedAttentionLibrary& fused_attention_library() {
  static const FusedAttentionLibrary none{.missing = "this build is without its headers", .in_words = {}};
  return none;
}

}  // namespace tessera::nn::cuda
