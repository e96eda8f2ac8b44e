// Faces of tensors, and the way of gradients.
#include "src/module_tensors.hpp"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>

#include <utility>

#include "tessera/base/error.hpp"

namespace tessera::torch {

namespace {

at::ScalarType torch_type(DType type) {
  switch (type) {
    case DType::fp32: return at::kFloat;
    case DType::bf16: return at::kBFloat16;
    case DType::fp16: return at::kHalf;
  }
  throw InternalError("an element type that torch does not have");
}

void* address(Window& window, const Parameter& parameter, DType type) {
  // Windows show constants, autograd asks for tensors; nothing here writes.
  switch (type) {
    case DType::fp32: return const_cast<float*>(window.parameter<float>(parameter).data());
    case DType::bf16: return const_cast<bf16*>(window.parameter<bf16>(parameter).data());
    case DType::fp16: return const_cast<fp16*>(window.parameter<fp16>(parameter).data());
  }
  throw InternalError("an element type that windows do not have");
}

void* gradient_address(Window& window, const Parameter& parameter, DType type) {
  switch (type) {
    case DType::fp32: return window.gradient<float>(parameter).data();
    case DType::bf16: return window.gradient<bf16>(parameter).data();
    case DType::fp16: return window.gradient<fp16>(parameter).data();
  }
  throw InternalError("an element type that windows do not have");
}

// Faces of tensors that are trained are normal ones, also where torch::InferenceMode is around their making.
at::Tensor detached(const at::Tensor& tensor) {
  const c10::InferenceMode normal(false);
  return tensor.detach();
}

// Stands in front of autograd's own accumulation, and leaves nothing for it to do.
class GradientTaker : public ::torch::autograd::FunctionPreHook {
 public:
  GradientTaker(std::shared_ptr<HiddenMark> mark, ParameterTensor& parameter)
      : mark_(std::move(mark)), parameter_(parameter) {}

  ::torch::autograd::variable_list operator()(const ::torch::autograd::variable_list& gradients) override {
    if (mark_->owner == nullptr || !gradients.front().defined()) return gradients;
    mark_->owner->take_gradient(mark_->unit, parameter_, gradients.front());
    return {at::Tensor()};
  }

 private:
  std::shared_ptr<HiddenMark> mark_;
  ParameterTensor& parameter_;  // there while the mark has an owner
};

}  // namespace

Shape shape_of(const at::Tensor& tensor) { return {tensor.sizes().begin(), tensor.sizes().end()}; }

at::Tensor view_of(void* data, at::IntArrayRef sizes, DType type, at::Device device) {
  const c10::InferenceMode normal(false);
  return at::from_blob(data, sizes, at::TensorOptions().dtype(torch_type(type)).device(device));
}

ParameterTensor::ParameterTensor(at::Tensor tensor, Parameter parameter, std::shared_ptr<HiddenMark> mark,
                                 at::Device device)
    : tensor_(std::move(tensor)),
      parameter_(std::move(parameter)),
      mark_(std::move(mark)),
      device_(device),
      own_(detached(tensor_)),
      hidden_(hidden_tensor(own_.sizes(), own_.options(), mark_)) {}

void ParameterTensor::show(Window& window) {
  void* data = address(window, parameter_, precision_.parameter);
  if (!shown_.defined() || shown_.data_ptr() != data) {
    shown_ = view_of(data, tensor_.sizes(), precision_.parameter, device_);
  }
  show_as(tensor_, shown_);
  if (accumulator_ == nullptr && !parameter_.options().frozen) watch_gradient();
}

void ParameterTensor::watch_gradient() {
  tensor_.mutable_grad() = at::Tensor();
  ::torch::autograd::impl::set_grad_accumulator(
      tensor_, WeakNodePointer(NodePointer()));  // an earlier one may know another type
  accumulator_ = ::torch::autograd::impl::grad_accumulator(tensor_);
  accumulator_->add_pre_hook(std::make_unique<GradientTaker>(mark_, *this));
}

void ParameterTensor::hand_over(const Precision& precision) {
  precision_ = precision;
  hidden_ = hidden_tensor(own_.sizes(), own_.options().dtype(torch_type(precision.parameter)).device(device_), mark_);
  own_ = at::Tensor();
  hide();
}

void ParameterTensor::let_go() {
  mark_->owner = nullptr;
  if (own_.defined()) return show_own();
  const c10::InferenceMode normal(false);
  show_as(tensor_, at::empty({0}, at::TensorOptions().dtype(torch_type(precision_.parameter)).device(device_)));
}

void ParameterTensor::take_gradient(Window& window, std::size_t window_serial, const at::Tensor& gradient) {
  if (!window.trains(parameter_)) return;  // in a step of a program that trains other units
  if (gradient.layout() != at::kStrided) {
    throw UsageError(
        fmt::format("the gradient of {} is {}, and gradients stand whole in windows: let its layer make dense ones (an "
                    "embedding with sparse(false))",
                    name(), gradient.layout() == at::kSparse ? "sparse" : "not strided"));
  }
  const DType type = precision_.gradient;
  const at::Tensor place = view_of(gradient_address(window, parameter_, type), tensor_.sizes(), type, device_);
  if (std::exchange(written_in_, window_serial) == window_serial) {
    place.add_(gradient);
  } else {
    place.copy_(gradient);
  }
}

BufferTensor::BufferTensor(at::Tensor tensor, at::Device device)
    : tensor_(std::move(tensor)), buffer_(shape_of(tensor_)), device_(device) {}

void BufferTensor::show(std::span<float> values) {
  show_as(tensor_, view_of(values.data(), tensor_.sizes(), DType::fp32, device_));
}

void BufferTensor::let_go() {
  const c10::InferenceMode normal(false);
  show_as(tensor_, tensor_.clone());
}

}  // namespace tessera::torch
