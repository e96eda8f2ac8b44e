// Says which instruction set the kernels use.
#include "environment_probe.hpp"
#include "tessera/kernels/instruction_set.hpp"

int main() { return say(tessera::kernels::active_instruction_set); }
