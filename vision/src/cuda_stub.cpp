// A build without the CUDA half links this in place of its layers of vision. No stream of a CUDA device exists there,
// so a call is a bug.
#include "tessera/base/error.hpp"
#include "vision/src/cuda/convolution_choice.hpp"
#include "vision/src/cuda/kernels.hpp"

namespace tessera::vision::cuda {

namespace {

[[noreturn]] void refuse() { throw InternalError("a CUDA layer was asked for in a build without the CUDA half"); }

}  // namespace

std::uint32_t images_at_once(const ConvolutionGeometry&) { refuse(); }
void convolution_forward(void*, const ConvolutionForwardRows&) { refuse(); }
void convolution_backward(void*, const ConvolutionBackwardRows&) { refuse(); }
std::size_t convolution_scratch_bytes(Format, const ConvolutionGeometry&, std::uint32_t) { refuse(); }
void max_pool(void*, const PooledImages&, const void*, void*, std::uint8_t*) { refuse(); }
void max_pool_gradient(void*, const PooledImages&, const void*, const std::uint8_t*, void*) { refuse(); }
void average_pool(void*, const PooledImages&, const void*, void*) { refuse(); }
void average_pool_gradient(void*, const PooledImages&, const void*, void*) { refuse(); }
void batch_norm_sums(void*, const BatchNormSumRows&) { refuse(); }
void batch_norm_forward(void*, const BatchNormForwardRows&) { refuse(); }
void batch_norm_follow(void*, const BatchNormFollowRows&) { refuse(); }
void batch_norm_backward(void*, const BatchNormBackwardRows&) { refuse(); }
std::size_t batch_norm_scratch_doubles(std::size_t, std::size_t) { refuse(); }
void place_tokens(void*, const TokenRows&) { refuse(); }
void token_gradients(void*, const TokenGradientRows&) { refuse(); }
void class_tokens(void*, const ClassTokenRows&) { refuse(); }

namespace convolutions {

std::string in_words() { refuse(); }

}  // namespace convolutions

}  // namespace tessera::vision::cuda
