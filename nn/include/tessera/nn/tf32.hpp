// Whether matrix products of fp32 on CUDA devices may round their operands.
#pragma once

#pragma GCC visibility push(default)

namespace tessera::nn {

// For the whole process: programs call it once at start, the same on every rank. True: products of fp32 run on tensor
// cores, which keep ten bits of each operand's mantissa and sum up in fp32. False, the start: operands stay as they
// are. The CPU and 16-bit types do not care.
void allow_tf32(bool allowed);

}  // namespace tessera::nn

#pragma GCC visibility pop
