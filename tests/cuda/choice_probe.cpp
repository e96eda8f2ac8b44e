// Says what computes attention, or convolutions, or why not: run by environment_test.py with the variable set,
// whose name is the argument.
#include <cstdio>
#include <string>
#include <string_view>

#include "src/cuda/attention_choice.hpp"
#include "tessera/base/error.hpp"
#include "vision/src/cuda/convolution_choice.hpp"

int main(int, char** argv) {
  try {
    const bool attention = argv[1] == std::string_view("TESSERA_ATTENTION");
    std::puts(std::string(attention ? to_string(tessera::nn::cuda::attentions::active())
                                    : to_string(tessera::vision::cuda::convolutions::active()))
                  .c_str());
    return 0;
  } catch (const tessera::UsageError& error) {
    std::puts(error.what());
    return 2;
  }
}
