// Processors other than x86-64: the portable row loops are all there are.
#include "src/rows/active_rows.hpp"

namespace tessera::nn {

const RowTable& active_rows() { return portable_rows(); }

}  // namespace tessera::nn
