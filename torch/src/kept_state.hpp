// A forward pass of a module changes this beside its parameters, and learn() goes back to it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <utility>
#include <vector>

#include "src/torch_generators.hpp"

namespace tessera::torch {

// A module's buffers, and torch's generators.
class KeptState {
 public:
  KeptState(const ::torch::nn::Module& module, at::Device device) : generators_(device) {
    for (const at::Tensor& buffer : module.buffers()) {
      if (buffer.defined() && !buffer.is_meta()) buffers_.emplace_back(buffer, buffer.detach().clone());
    }
  }
  void put_back() const {
    const at::NoGradGuard no_graph;
    for (const auto& [buffer, values] : buffers_) buffer.copy_(values);
    generators_.restore();
  }

 private:
  GeneratorStates generators_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

}  // namespace tessera::torch
