// The CPU kernels compiled for AVX-512 (F, BW, VL, DQ).
#include "kernels/cpu/lanes_avx512.hpp"
#include "kernels/cpu/table_of_lanes.hpp"

namespace tessera::kernels {

const KernelTable& avx512_table() { return table_of_lanes<Avx512Lanes>; }

}  // namespace tessera::kernels
