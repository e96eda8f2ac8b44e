// Says which instruction set the kernels use, or why not: run by environment_test.py with the variable set.
#include <cstdio>
#include <string>

#include "tessera/base/error.hpp"
#include "tessera/kernels/instruction_set.hpp"

int main() {
  try {
    std::puts(std::string(to_string(tessera::kernels::active_instruction_set())).c_str());
    return 0;
  } catch (const tessera::UsageError& error) {
    std::puts(error.what());
    return 2;
  }
}
