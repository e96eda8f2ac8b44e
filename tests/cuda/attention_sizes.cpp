// Prints what attention's kernels ask for when they are launched: name, width, whether anything is dropped, threads of
// a block and its shared memory in bytes. Disassembly cannot know.
#include "src/cuda/attention_sizes.hpp"

#include <cstdio>

using namespace tessera::nn::cuda;

namespace {

template <unsigned width, bool dropping>
void print() {
  const auto line = [](const char* kernel, const BlockSizes& block) {
    std::printf("%s %u %s %u %zu\n", kernel, width, dropping ? "true" : "false", tile_threads, block.shared_bytes);
  };
  line("forward_tiles", forward_block<width, dropping>);
  line("query_gradients", query_gradients_block<width, dropping>);
  line("key_gradients", key_gradients_block<width, dropping>);
}

}  // namespace

int main() {
  print<64, false>();
  print<64, true>();
  print<128, false>();
  print<128, true>();
}
