// Which tensors of a module belong to which unit, by the user's rule.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/torch/units.hpp"

namespace tessera::torch {

struct NamedTensor {
  std::string name;  // as the module's named_parameters() or named_buffers() has it
  at::Tensor tensor;
};

struct UnitMembers {
  std::string name;  // the submodule's path; for parameters of no named submodule "root", "root.2", … that is no path
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
};

// In the order of declaration. A tensor with several names comes once, by the first; so does one that is registered as
// parameter and buffer, as a parameter. Throws UsageError for a path that is given twice, a type of parameter that is
// not fp32, a tensor that was made under torch::InferenceMode, and a module without parameters.
std::vector<UnitMembers> divide(const ::torch::nn::Module& module, const Units& units);

// The module's parameters, and its buffers, as they are now, each once, in the order of declaration.
std::vector<NamedTensor> distinct_parameters(const ::torch::nn::Module& module);
std::vector<NamedTensor> distinct_buffers(const ::torch::nn::Module& module);

// Whether each parameter that the module has now is `known`. Without names, which torch forms anew for every list.
bool has_only(const ::torch::nn::Module& module, const std::function<bool(const at::Tensor&)>& known);

}  // namespace tessera::torch
