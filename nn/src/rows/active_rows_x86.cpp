// x86-64: row loops for whatever the processor has.
#include "src/rows/active_rows.hpp"
#include "tessera/kernels/instruction_set.hpp"

namespace tessera::nn {

const RowTable& active_rows() {
  switch (kernels::active_instruction_set()) {
    case kernels::InstructionSet::avx512: return avx512_rows();
    case kernels::InstructionSet::avx2: return avx2_rows();
    case kernels::InstructionSet::portable: break;
  }
  return portable_rows();
}

}  // namespace tessera::nn
