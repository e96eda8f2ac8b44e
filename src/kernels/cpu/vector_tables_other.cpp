// Processors other than x86-64: the portable kernels are all there are.
#include "kernels/dispatch.hpp"

namespace tessera::kernels {

const KernelTable* find_avx2_table() { return nullptr; }
const KernelTable* find_avx512_table() { return nullptr; }

}  // namespace tessera::kernels
