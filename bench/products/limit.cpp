// Fused multiply-adds on registers alone: no product of this processor is faster.
#include <cstddef>

#include "products/contestants.hpp"
#include "tessera/kernels/instruction_set.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bench {

#if defined(__x86_64__)

namespace {

// Ten sums hide the latency of any processor's. The compiler must not see that nobody reads them.
#define TESSERA_MULTIPLY_ADDS(NAME, TARGET, FLOATS, SET, ADD, FMADD)                                 \
  [[gnu::target(TARGET)]] void NAME(std::size_t operations) {                                        \
    constexpr std::size_t sums = 10;                                                                 \
    FLOATS sum[sums];                                                                                \
    for (auto& each : sum) each = SET(0.5f);                                                         \
    const FLOATS factor = SET(0.25f);                                                                \
    for (std::size_t done = 0; done < operations; done += sums * 2 * sizeof(FLOATS) / sizeof(float)) \
      _Pragma("GCC unroll 10") for (auto& each : sum) each = FMADD(each, factor, factor);            \
    FLOATS total = factor;                                                                           \
    _Pragma("GCC unroll 10") for (const auto& each : sum) total = ADD(total, each);                  \
    asm volatile("" : : "v"(total));                                                                 \
  }

TESSERA_MULTIPLY_ADDS(multiply_adds_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_add_ps, _mm256_fmadd_ps)
TESSERA_MULTIPLY_ADDS(multiply_adds_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_add_ps, _mm512_fmadd_ps)

#undef TESSERA_MULTIPLY_ADDS

}  // namespace

std::optional<std::function<void()>> multiply_adds(std::size_t operations) {
  switch (tessera::kernels::active_instruction_set()) {
    case tessera::kernels::InstructionSet::avx2: return [operations] { multiply_adds_avx2(operations); };
    case tessera::kernels::InstructionSet::avx512: return [operations] { multiply_adds_avx512(operations); };
    default: return std::nullopt;
  }
}

#else

std::optional<std::function<void()>> multiply_adds(std::size_t) { return std::nullopt; }

#endif

}  // namespace bench
