// The kernels for vector instructions, where both this build and this processor have them.
#pragma once

#include "kernels/kernel_table.hpp"

namespace tessera::kernels {

const KernelTable* find_avx2_table();    // null: not here
const KernelTable* find_avx512_table();  // null: not here

}  // namespace tessera::kernels
