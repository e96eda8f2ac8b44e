// Launching kernels from a task of a CUDA stream. For .cu files: needs the CUDA toolkit's headers.
//
//   stream.submit([native = native_stream(stream), x, n] { launch(native, blocks_for(n, 256), double_all, x, n); });
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

#include "tessera/base/error.hpp"

namespace tessera::cuda {

struct Launch {
  dim3 blocks = dim3(1);
  unsigned threads = 256;        // per block
  std::size_t shared_bytes = 0;  // dynamic shared memory per block
};

// Enough blocks of `threads` for one thread per item; at most `most`, so that a kernel strides over what is left.
inline Launch blocks_for(std::size_t items, unsigned threads = 256, std::size_t most = 65535) {
  const std::size_t blocks = (items + threads - 1) / threads;
  return {.blocks = dim3(static_cast<unsigned>(blocks < most ? blocks : most)), .threads = threads};
}

inline void require(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw Error(std::string(call) + " failed: " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}

// Runs kernel(arguments…) on the CUDA stream. Enqueues, does not synchronise. Throws Error when the runtime refuses it.
template <typename... Parameters>
void launch(void* native, const Launch& how, void (*kernel)(Parameters...),
            std::type_identity_t<Parameters>... arguments) {
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = how.blocks;
  configuration.blockDim = dim3(how.threads);
  configuration.dynamicSmemBytes = how.shared_bytes;
  configuration.stream = static_cast<cudaStream_t>(native);
  require(cudaLaunchKernelEx(&configuration, kernel, arguments...), "cudaLaunchKernelEx");
}

}  // namespace tessera::cuda
