// Says what computes attention, or why not: run by environment_test.py with the variable set.
#include <cstdio>
#include <string>

#include "src/cuda/attention_choice.hpp"
#include "tessera/base/error.hpp"

int main() {
  try {
    std::puts(std::string(to_string(tessera::nn::cuda::attentions::active())).c_str());
    return 0;
  } catch (const tessera::UsageError& error) {
    std::puts(error.what());
    return 2;
  }
}
