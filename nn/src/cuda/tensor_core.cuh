// A warp uses tensor cores through these, by the instructions themselves: tiles of 8 × 8 from shared memory into
// fragments (ldmatrix), products of [16, 16] and [16, 8] (mma.m16n8k16), copies into shared memory that nobody waits
// for yet (cp.async). The PTX ISA lays fragments out so: lane 4 g + t has of A rows g and g + 8, columns 2t and 2t + 1,
// then the same eight columns on; of B column g, the same rows; of sums rows g and g + 8, columns 2t and 2t + 1.
#pragma once

#include <cstddef>

#include "src/cuda/elements.cuh"

namespace tessera::nn::cuda {

// Four tiles of 8 × 8 elements of two bytes: the lanes 8 i to 8 i + 7 name the rows of tile i, each of 16 bytes in shared
// memory on that alignment; to[i] becomes the lane's pair of tile i, or of its transpose. All lanes of a warp call it.
template <bool transposed>
__device__ void load_matrices(unsigned (&to)[4], const void* row);

// sums += a · [b0; b1]. All lanes of a warp call it.
template <typename T>
__device__ void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

// Two elements in one register, the first one in its lower half; rounded to nearest even.
template <typename T>
__device__ unsigned pair_of(float first, float second);

// Copies 4 or 16 bytes from global to shared memory, or zeros where nothing exists, and then nothing is read. Both
// addresses are aligned to the size. The thread sees them after await_copies(), others after a barrier that follows.
template <int bytes>
__device__ void copy_async(void* to, const void* from, bool exists);
__device__ void await_copies();

// 2^x, as the hardware has it: two units in the last place.
__device__ float power_of_two(float x);

#if defined(__CUDACC__)

__device__ inline unsigned shared_address(const void* data) {
  return static_cast<unsigned>(__cvta_generic_to_shared(data));
}

template <bool transposed>
__device__ inline void load_matrices(unsigned (&to)[4], const void* row) {
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)));
  }
}

#define TESSERA_MULTIPLY_ADD(T, name)                                                                              \
  template <>                                                                                                      \
  __device__ inline void multiply_add<T>(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {     \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                            \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                            \
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                  \
  }                                                                                                                \
  template <>                                                                                                      \
  __device__ inline unsigned pair_of<T>(float first, float second) {                                               \
    unsigned pair;                                                                                                 \
    asm("cvt.rn." name "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));                               \
    return pair;                                                                                                   \
  }
TESSERA_MULTIPLY_ADD(__nv_bfloat16, "bf16")
TESSERA_MULTIPLY_ADD(__half, "f16")
#undef TESSERA_MULTIPLY_ADD

template <int bytes>
__device__ inline void copy_async(void* to, const void* from, bool exists) {
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(exists ? bytes : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(exists ? bytes : 0)
                 : "memory");
  }
}
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ inline float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

#endif

}  // namespace tessera::nn::cuda

#if !defined(__CUDACC__)
#include <emulated_tensor_core.h>
#endif
