// x86-64: the loops over rows of images of the instruction set that was chosen.
#include "tessera/kernels/instruction_set.hpp"
#include "vision/src/rows/image_rows.hpp"

namespace tessera::vision {

const ImageRows& active_image_rows() {
  switch (kernels::active_instruction_set()) {
    case kernels::InstructionSet::avx512: return avx512_image_rows();
    case kernels::InstructionSet::avx2: return avx2_image_rows();
    case kernels::InstructionSet::portable: break;
  }
  return portable_image_rows();
}

}  // namespace tessera::vision
