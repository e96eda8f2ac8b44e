// A build without the CUDA half links this in place of its layers. No stream of a CUDA device exists there, so a call
// is a bug.
#include "src/cuda/attention_choice.hpp"
#include "src/cuda/cuda_layers.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn::cuda {

namespace {

[[noreturn]] void refuse() { throw InternalError("a CUDA layer was asked for in a build without the CUDA half"); }

}  // namespace

void require_products() { refuse(); }
std::string products_in_words() { refuse(); }
bool multiply(void*, const Product&) { refuse(); }
void copy_chunks(void*, const ChunkCopy&) { refuse(); }
void gelu(void*, const GeluRow&) { refuse(); }
void add(void*, const AddRow&) { refuse(); }
void dropout(void*, const DropoutRows&) { refuse(); }
void relu(void*, const ReluRow&) { refuse(); }
void linear_forward(void*, const LinearForwardRows&) { refuse(); }
void linear_backward(void*, const LinearBackwardRows&) { refuse(); }
void layer_norm_forward(void*, const LayerNormForwardRows&) { refuse(); }
void layer_norm_backward(void*, const LayerNormBackwardRows&, float*) { refuse(); }
std::size_t layer_norm_scratch(std::size_t, std::size_t) { refuse(); }
void embedding_forward(void*, const EmbeddingForwardRows&) { refuse(); }
void embedding_backward(void*, const EmbeddingBackwardRows&) { refuse(); }
void cross_entropy_forward(void*, const CrossEntropyArguments&, float*) { refuse(); }
void cross_entropy_backward(void*, const CrossEntropyArguments&, const CrossEntropyGradient&) { refuse(); }
void cross_entropy_at_once(void*, const CrossEntropyArguments&, float*, const CrossEntropyGradient&) { refuse(); }
void cross_entropy_of_slice(void*, const CrossEntropyArguments&, float*) { refuse(); }
void cross_entropy_of_slices(void*, const CrossEntropyArguments&, const BroughtClasses&, float*) { refuse(); }
void count_correct(void*, const CrossEntropyArguments&, double*, std::size_t) { refuse(); }

namespace attentions {

Set active() { refuse(); }
std::string in_words() { refuse(); }
std::size_t forward_scratch_bytes(const AttentionTiles&) { refuse(); }
std::size_t backward_scratch_bytes(const AttentionTiles&) { refuse(); }
void forward(void*, const AttentionTiles&) { refuse(); }
void backward(void*, const AttentionTiles&) { refuse(); }

}  // namespace attentions

}  // namespace tessera::nn::cuda
