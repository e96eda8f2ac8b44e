// One direction of a convolution by a library, in plain terms, and the one door to it. So what is asked for can be
// checked where there is no GPU; the tests put another library behind it.
#pragma once

#include <string>

#include "nn/src/cuda/product.hpp"
#include "nn/src/rows/row_table.hpp"
#include "vision/src/convolution/geometry.hpp"

namespace tessera::vision::cuda {

enum class ConvolutionDirection { forward, image_gradient, weight_gradient };

// The direction's result is written, the other two are read. All three begin on 16 bytes, and none is empty.
struct LibraryConvolution {
  Format format;  // of all three; sums are in fp32
  bool tf32;      // fp32 operands may be rounded to ten bits of mantissa
  ConvolutionDirection direction;
  ConvolutionGeometry of;
  const void* images;   // x or its gradient, NHWC
  const void* weights;  // [out, kernel's places, in / groups], or their gradient
  const void* results;  // y or its gradient, NHWC
  Workspace workspace;
};

struct ConvolutionLibrary {
  std::string missing;   // why it cannot be used; empty when it can
  std::string in_words;  // such as "cuDNN 9.19.0"

  // Enqueues on `native`, a cudaStream_t. False when there is no kernel that gives the same bits each time and fits the
  // workspace, which it says on stderr; nothing was enqueued then. The first time it prepares a kernel, which takes
  // long and allocates on the host; later it looks it up by everything but addresses. Called on the thread that issues,
  // with the stream's device current.
  bool (*run)(void* native, const LibraryConvolution& operation) = nullptr;
};
const ConvolutionLibrary& convolution_library();

}  // namespace tessera::vision::cuda
