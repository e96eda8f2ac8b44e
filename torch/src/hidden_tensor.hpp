// Tensors whose memory is a parameter's, and may be computed with only where its owner allows it: the parameter, hidden
// (of its shape, without values) or shown, and every view of it. Whatever operator of torch's gets one asks the owner
// first. They have a dispatch key of their own, above autograd's, that torch leaves to others and that views inherit;
// no tensor outside of this library has it, so nothing else becomes slower.
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
  // `operation` ("aten::linear") is about to use a parameter that is hidden. Returns when it is shown; throws where it
  // may not be used.
  virtual void about_to_use(std::size_t unit, const std::string& parameter, const std::string& operation) = 0;
  // Autograd has the parameter's gradient, all of it that one graph gives.
  virtual void take_gradient(std::size_t unit, ParameterTensor& parameter, const at::Tensor& gradient) = 0;
};

// A parameter's tensors know this of it. Their storages keep it, and may outlive its owner.
struct ParameterMark {
  TensorOwner* owner;  // null: the model is gone
  std::size_t unit;
  std::string parameter;
  bool shown = false;
  bool gradient_asked = false;  // for a place to write to: by zero_grad() of the module, or an assignment
};

// The parameter whose memory the tensor has; null: nobody's.
const ParameterMark* mark_of(const at::Tensor& tensor);

// A tensor of this shape, and of these options' type and device, that has no values.
at::Tensor hidden_tensor(at::IntArrayRef sizes, const at::TensorOptions& options, std::shared_ptr<ParameterMark> mark);

// A tensor over `data`, which point_to() may change, also for its views: null while it is hidden.
at::Tensor marked_tensor(void* data, at::IntArrayRef sizes, const at::TensorOptions& options,
                         std::shared_ptr<ParameterMark> mark);
void point_to(const at::Tensor& marked, void* data);

// Gives `tensor` the shape, values and type of `face`; it stays itself to whoever holds it, and to autograd.
void show_as(const at::Tensor& tensor, const at::Tensor& face);

}  // namespace tessera::torch
