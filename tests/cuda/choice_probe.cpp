// Says what computes attention, or convolutions: the argument is the variable's name.
#include <string_view>

#include "../kernels/environment_probe.hpp"
#include "src/cuda/attention_choice.hpp"
#include "vision/src/cuda/convolution_choice.hpp"

int main(int, char** argv) {
  if (argv[1] == std::string_view("TESSERA_ATTENTION")) return say(tessera::nn::cuda::attentions::active);
  return say(tessera::vision::cuda::convolutions::active);
}
