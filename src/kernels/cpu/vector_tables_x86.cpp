// x86-64: asks the processor (and, through it, the operating system) before handing out vector kernels.
#include "kernels/dispatch.hpp"

namespace tessera::kernels {
namespace {

// Every processor with AVX2 has F16C; not every compiler's __builtin_cpu_supports knows its name.
bool processor_has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool processor_has_avx512() {
  return processor_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

}  // namespace

const KernelTable* find_avx2_table() { return processor_has_avx2() ? &avx2_table() : nullptr; }
const KernelTable* find_avx512_table() { return processor_has_avx512() ? &avx512_table() : nullptr; }

}  // namespace tessera::kernels
