// The tests ask this of the attention that stands in place of cuDNN's on the emulated device, and learn what it was
// asked.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace tessera::nn::cuda {

struct EmulatedAttention {
  std::size_t bytes_of_head = 64;  // of workspace that it takes
  bool has_kernels = true;
  std::vector<std::pair<std::size_t, std::size_t>> calls = {};  // sequences and heads of each
};
EmulatedAttention& emulated_attention();  // for one stream at a time

}  // namespace tessera::nn::cuda
