// The tests ask this of the convolutions that stand in place of cuDNN's on the emulated device, and learn what they
// were asked.
#pragma once

#include <cstddef>
#include <vector>

#include "vision/src/cuda/library_convolution.hpp"

namespace tessera::vision::cuda {

struct EmulatedConvolutions {
  std::size_t workspace_bytes = 4096;  // that it takes
  bool has_kernels = true;
  std::vector<ConvolutionDirection> calls = {};  // that it computed
};
EmulatedConvolutions& emulated_convolutions();  // for one stream at a time

}  // namespace tessera::vision::cuda
