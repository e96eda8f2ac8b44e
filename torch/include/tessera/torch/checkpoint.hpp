// Activation checkpointing: keeps a part's input in place of what autograd would save, and computes the part again in
// the backward pass, in the backward window of its unit.
//
//   x = tessera::torch::checkpoint([&](const torch::Tensor& input) { return block->forward(input); }, x);
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#pragma GCC visibility push(default)

namespace tessera::torch {

// What `part(input)` returns. `part` uses parameters of one unit (another one's is a UsageError in the backward pass),
// gives the same whenever it is called, and is kept until then. Throws UsageError when torch's random generator moved
// meanwhile, because the second run would draw other numbers; ranks that are threads share that generator.
at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> part, const at::Tensor& input);

}  // namespace tessera::torch

#pragma GCC visibility pop
