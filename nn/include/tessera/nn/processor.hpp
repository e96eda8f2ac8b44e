// What computes the layers on this machine's processor: which the bits depend on, and the speed. Variables cap it,
// to have another processor's bits on this one: TESSERA_INSTRUCTION_SET (instruction_set.hpp) for rows and kernels, and
// for products TESSERA_PRODUCTS: "openblas", "avx512", "avx512_bf16" or "onednn" (AMX's are taken only by that). A
// third chooses what computes convolutions, TESSERA_CONVOLUTIONS: "products" or "onednn". A value that this build or
// machine does not have is a UsageError.
#pragma once

#include <string>

namespace tessera::nn {

// One line, such as "rows with avx512; products of fp32 for AVX-512, of bf16 for AVX512_BF16, of fp16 as fp32, of fp64
// by OpenBLAS for SkylakeX; convolutions as products; 2 threads". Throws UsageError where a variable is wrong.
std::string computed_with();

}  // namespace tessera::nn
