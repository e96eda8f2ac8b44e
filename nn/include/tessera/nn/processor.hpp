// What computes the layers on this machine's processor: which the bits depend on, and the speed.
#pragma once

#include <string>

namespace tessera::nn {

// One line, such as "rows with avx512; products of fp32 for AVX-512, of bf16 for AVX512_BF16, of fp16 as fp32, of fp64
// by OpenBLAS for SkylakeX; 2 threads".
std::string computed_with();

}  // namespace tessera::nn
