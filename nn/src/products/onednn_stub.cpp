// A build without oneDNN.
#include "src/products/onednn.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn::onednn {

bool available() { return false; }
bool has_tiles() { return false; }
void multiply(const Gemm<bf16>&) { throw InternalError("a product for oneDNN, which this build does not have"); }
std::string in_words() { return "without oneDNN"; }

}  // namespace tessera::nn::onednn
