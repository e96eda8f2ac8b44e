// Processors other than x86-64: the BLAS does all products.
#include "src/products/product.hpp"

namespace tessera::nn {

MultiplyFunction find_multiply() { return nullptr; }
MultiplyPairsFunction find_multiply_bf16() { return nullptr; }

}  // namespace tessera::nn
