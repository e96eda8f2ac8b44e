// Attention on CUDA devices is computed by own kernels, or by cuDNN's fused one where it can be used. What the build
// and the machine have decides, never a timing.
//
// cuDNN computes whole sequences of bf16 and fp16 without dropout, whose mask is this project's own, in heads of a
// multiple of 8. All else, and what it has no kernel for, own kernels compute; both keep the same statistics, so the
// backward pass in heads of at most 64 is that of own kernels, which are faster there. The library's deterministic one
// keeps probabilities in memory, rows² · 2 bytes for each head, so it is called for as many sequences and heads at a
// time as fit a limit.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "src/cuda/cuda_layers.hpp"

namespace tessera::nn::cuda::attentions {

enum class Set { own, cudnn };

std::string_view to_string(Set set);
std::vector<Set> available();  // of this build and machine; `own` is always among them

// In use: what the environment variable TESSERA_ATTENTION names, else the last that is available. Throws UsageError
// when the variable names none that is.
Set active();
// Test hook, as select_product_set().
void select(Set set);

std::string in_words();  // what computes attention, and why it is not cuDNN

// Bytes of scratch memory that a pass over such tiles may use, and its own kernels at least need.
std::size_t forward_scratch_bytes(const AttentionTiles& a);
std::size_t backward_scratch_bytes(const AttentionTiles& a);

// a.scratch has so many bytes.
void forward(void* native, const AttentionTiles& a);
void backward(void* native, const AttentionTiles& a);

}  // namespace tessera::nn::cuda::attentions
