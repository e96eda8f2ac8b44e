// The layers' bits depend on what computes them on this machine, and so does the speed. Variables cap its processor, to
// have another processor's bits on this one: TESSERA_INSTRUCTION_SET (instruction_set.hpp) for rows and kernels, and
// for products TESSERA_PRODUCTS: "openblas", "avx2", "avx512", "avx512_bf16" or "onednn" (AMX's are taken only by
// that). A value that this build or machine does not have is a UsageError. (Convolutions:
// tessera/vision/convolution.hpp.)
//
// On CUDA devices TESSERA_ATTENTION, "own" or "cudnn", chooses what computes attention: cuDNN where it can be opened,
// unless it says otherwise. Of the algorithms that cuBLASLt proposes for a product, TESSERA_CUDA_PRODUCTS takes the
// "first" (the default) or the fastest, "timed" once in the run, which puts a line about each on stderr; a log with
// such lines, given by its path, is taken as it says, so that a run's bits can be repeated.
#pragma once

#include <string>

#pragma GCC visibility push(default)

namespace tessera::nn {

// One line, such as "rows with avx512; products of fp32 for AVX-512, of bf16 for AVX512_BF16, of fp16 as fp32, of fp64
// by OpenBLAS for SkylakeX; 2 threads". Throws UsageError where a variable is wrong.
std::string computed_with();

// The same for CUDA devices, of a build with them: "products by cuBLASLt 13.0.0, the first proposals; attention by own
// kernels (cudnn: this build is without its headers)".
std::string computed_with_on_cuda();

}  // namespace tessera::nn

#pragma GCC visibility pop
