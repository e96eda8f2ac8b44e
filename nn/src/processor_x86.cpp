// x86-64: the row loops of the instruction set that was chosen, and the products that the processor can do.
#include "src/products/product.hpp"
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

const FloatProducts* find_float_products(kernels::InstructionSet set) {
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (set == kernels::InstructionSet::avx512 && has_avx512) return &avx512_products();
  if (set == kernels::InstructionSet::avx2 && has_avx2) return &avx2_products();
  return nullptr;
}

const PairProducts* find_pair_products() {
  static constexpr PairProducts avx512{multiply_bf16_avx512, multiply_rounded_bf16_avx512};
  const bool available =
      find_float_products(kernels::InstructionSet::avx512) != nullptr && __builtin_cpu_supports("avx512bf16");
  return available ? &avx512 : nullptr;
}

}  // namespace tessera::nn
