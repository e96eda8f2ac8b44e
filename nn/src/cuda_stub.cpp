// A build without the CUDA half links this in place of its layers. No stream of a CUDA device exists there, so a call
// is a bug.
#include "src/cuda/attention_choice.hpp"
#include "src/cuda/convolution_choice.hpp"
#include "src/cuda/cuda_layers.hpp"
#include "src/cuda/vision_layers.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn::cuda {

namespace {

[[noreturn]] void refuse() { throw InternalError("a CUDA layer was asked for in a build without the CUDA half"); }

}  // namespace

void require_products() { refuse(); }
std::string products_in_words() { refuse(); }
void gelu(void*, const GeluRow&) { refuse(); }
void add(void*, const AddRow&) { refuse(); }
void dropout(void*, const DropoutRows&) { refuse(); }
void relu(void*, const ReluRow&) { refuse(); }
void linear_forward(void*, const LinearForwardRows&) { refuse(); }
void linear_backward(void*, const LinearBackwardRows&) { refuse(); }
std::size_t linear_scratch_bytes(std::size_t, std::size_t, std::size_t) { refuse(); }
void layer_norm_forward(void*, const LayerNormForwardRows&) { refuse(); }
void layer_norm_backward(void*, const LayerNormBackwardRows&, float*) { refuse(); }
std::size_t layer_norm_scratch(std::size_t, std::size_t) { refuse(); }
void embedding_forward(void*, const EmbeddingForwardRows&) { refuse(); }
void embedding_backward(void*, const EmbeddingBackwardRows&) { refuse(); }
void cross_entropy_forward(void*, const CrossEntropyArguments&, float*) { refuse(); }
void cross_entropy_backward(void*, const CrossEntropyArguments&, const CrossEntropyGradient&) { refuse(); }
void cross_entropy_at_once(void*, const CrossEntropyArguments&, float*, const CrossEntropyGradient&) { refuse(); }
void count_correct(void*, const CrossEntropyArguments&, double*, std::size_t) { refuse(); }
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

namespace attentions {

Set active() { refuse(); }
std::string in_words() { refuse(); }
std::size_t forward_scratch_bytes(const AttentionTiles&) { refuse(); }
std::size_t backward_scratch_bytes(const AttentionTiles&) { refuse(); }
void forward(void*, const AttentionTiles&) { refuse(); }
void backward(void*, const AttentionTiles&) { refuse(); }

}  // namespace attentions

namespace convolutions {

std::string in_words() { refuse(); }

}  // namespace convolutions

}  // namespace tessera::nn::cuda
