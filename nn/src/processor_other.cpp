// Processors other than x86-64: the portable row loops are all there are, and the BLAS does all products.
#include "src/products/product.hpp"
#include "src/rows/active_rows.hpp"

namespace tessera::nn {

const RowTable& active_rows() { return portable_rows(); }

const FloatProducts* find_float_products(kernels::InstructionSet) { return nullptr; }
const PairProducts* find_pair_products() { return nullptr; }

}  // namespace tessera::nn
