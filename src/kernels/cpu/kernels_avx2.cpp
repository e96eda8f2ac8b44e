// The CPU kernels compiled for AVX2, FMA and F16C.
#include "kernels/cpu/lanes_avx2.hpp"
#include "kernels/cpu/table_of_lanes.hpp"

namespace tessera::kernels {

const KernelTable& avx2_table() { return table_of_lanes<Avx2Lanes>; }

}  // namespace tessera::kernels
