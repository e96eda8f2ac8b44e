// Activation checkpointing: keeps a part's inputs in place of what autograd would save, and computes the part again in
// the backward pass, in the backward window of its unit.
//
//   x = tessera::torch::checkpoint([&](const torch::Tensor& input) { return block->forward(input); }, x);
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#pragma GCC visibility push(default)

namespace tessera::torch {

// Returns `part(input)`. `part` uses parameters of one unit (another one's is a UsageError in the backward pass),
// gives the same whenever it is called, and is kept until then. A tensor that needs a gradient must be an input, and
// not come in by capture. Random numbers are drawn again from where torch's generators stood, by as many operators:
// a part that draws in one of its runs alone is a UsageError in the backward pass. Of ranks that are threads, which
// share generators, no other may draw meanwhile: that is one, too.
at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> part, const at::Tensor& input);

// The same with several inputs and results.
std::vector<at::Tensor> checkpoint(std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> part,
                                   const std::vector<at::Tensor>& inputs);

}  // namespace tessera::torch

#pragma GCC visibility pop
