// Convolutions on CUDA devices are computed as products of what the kernel sees, or by cuDNN where it can be used. What
// the build and the machine have decides, never a timing.
//
// cuDNN is asked for kernels alone that give the same bits each time and fit the scratch memory; what it has none for
// is computed by products. Its gradient of 16-bit weights is rounded before it is added to another, and so are its
// results before the bias is.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "vision/src/cuda/library_convolution.hpp"

namespace tessera::vision::cuda::convolutions {

enum class Set { products, cudnn };

std::string_view to_string(Set set);
std::vector<Set> available();  // of this build and machine; `products` is always among them

// In use: what the environment variable TESSERA_CUDA_CONVOLUTIONS names, else the last that is available. Throws
// UsageError when the variable names none that is.
Set active();
// Test hook, as select_product_set().
void select(Set set);

std::string in_words();  // what computes convolutions, and why it is not cuDNN

// Bytes of workspace that a library should be given; 0 where none is asked.
std::size_t library_workspace_bytes();

// Whether a library has done it; nothing was enqueued otherwise. Pointers may stand anywhere.
bool by_library(void* native, const LibraryConvolution& operation);

}  // namespace tessera::vision::cuda::convolutions
