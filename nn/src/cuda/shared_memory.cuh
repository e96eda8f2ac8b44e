// The dynamic shared memory of a block: how a kernel gets it, and how a launch asks for more than the usual 48 KiB.
#pragma once

#include <cstddef>

#include "tessera/device/cuda_launch.cuh"

namespace tessera::nn::cuda {

inline constexpr std::size_t most_shared_bytes = 160 * 1024;  // what sm_80 and sm_90 give a block, if asked

// Begins on 128 bytes.
__device__ inline unsigned char* dynamic_shared() {
#if defined(__CUDACC__)
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
#else
  return reinterpret_cast<unsigned char*>(::emulated::self().dynamic_shared);
#endif
}

template <typename... Parameters>
void allow_shared(void (*kernel)(Parameters...), std::size_t bytes) {
  if (bytes <= 48 * 1024) return;
  tessera::cuda::require(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize)");
}

}  // namespace tessera::nn::cuda
