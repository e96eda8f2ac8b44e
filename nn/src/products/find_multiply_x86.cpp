// x86-64: asks the processor before handing out what needs AVX-512.
#include "src/products/product.hpp"

namespace tessera::nn {

MultiplyFunction find_multiply() {
  const bool available = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return available ? multiply_avx512 : nullptr;
}

MultiplyPairsFunction find_multiply_bf16() {
  const bool available = find_multiply() != nullptr && __builtin_cpu_supports("avx512bf16");
  return available ? multiply_bf16_avx512 : nullptr;
}

}  // namespace tessera::nn
