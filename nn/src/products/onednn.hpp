// Products of bf16 by oneDNN, which knows instructions that are not written by hand here (AMX). On the calling thread
// alone: who has several gives each a part. oneDNN forms its sums in fp32; how it orders them is its own affair, so
// parts of a product need not have the bits of the whole. A product allocates and frees some hundred bytes of the
// host's heap.
#pragma once

#include <string>

#include "src/gemm.hpp"
#include "tessera/base/half.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn::onednn {

// Whether this build has it, and this processor instructions for bf16 that it uses.
bool available();
// Whether those are tiles' (AMX).
bool has_tiles();

// Multiplies operands whose strides are known and whose extents are at least 1. Throws std::runtime_error when oneDNN
// fails.
void multiply(const Gemm<bf16>& product);

// Such as "oneDNN 3.1.0 with AMX".
std::string in_words();

}  // namespace tessera::nn::onednn

#pragma GCC visibility pop
