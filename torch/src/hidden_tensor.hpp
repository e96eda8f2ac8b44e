// A tensor that may be looked at but not computed with: whatever operator of torch's gets it asks its owner first. It
// has a dispatch key of its own, above autograd's, that torch leaves to others; no tensor outside of this library has
// it, so nothing else becomes slower.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>

namespace tessera::torch {

class ParameterTensor;

class TensorOwner {
 public:
  virtual ~TensorOwner() = default;
  // `operation` ("aten::linear") is about to use the hidden parameter. Returns when it is whole; throws where it may
  // not be used.
  virtual void about_to_use(std::size_t unit, const std::string& parameter, const std::string& operation) = 0;
  // Autograd has the parameter's gradient, all of it that one graph gives.
  virtual void take_gradient(std::size_t unit, ParameterTensor& parameter, const at::Tensor& gradient) = 0;
};

// A hidden tensor knows this of itself. The tensor's storage keeps it, which may outlive its owner.
struct HiddenMark {
  TensorOwner* owner;  // null: the model is gone
  std::size_t unit;
  std::string parameter;
};

// A tensor of this shape, and of these options' type and device, that has no values.
at::Tensor hidden_tensor(at::IntArrayRef sizes, const at::TensorOptions& options, std::shared_ptr<HiddenMark> mark);

// Gives `tensor` the shape, values and type of `face`; it stays itself to whoever holds it, and to autograd.
void show_as(const at::Tensor& tensor, const at::Tensor& face);

}  // namespace tessera::torch
