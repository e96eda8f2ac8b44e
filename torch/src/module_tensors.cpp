// Faces of tensors, and the way of gradients.
#include "src/module_tensors.hpp"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <span>

#include "tessera/base/error.hpp"

namespace tessera::torch {

namespace {

at::ScalarType torch_type(DType type) {
  switch (type) {
    case DType::fp32: return at::kFloat;
    case DType::bf16: return at::kBFloat16;
    case DType::fp16: return at::kHalf;
    case DType::u8:
    case DType::int8: break;
  }
  throw InternalError("an element type that torch does not have");
}

// Returns where span(T{}) begins, for the T of this element type. Windows show constants, autograd asks for tensors;
// nothing here writes.
template <typename Span>
void* address(DType type, Span span) {
  switch (type) {
    case DType::fp32: return const_cast<float*>(span(float{}).data());
    case DType::bf16: return const_cast<bf16*>(span(bf16{}).data());
    case DType::fp16: return const_cast<fp16*>(span(fp16{}).data());
    case DType::u8:
    case DType::int8: break;
  }
  throw InternalError("an element type that windows do not have");
}

// Whether a gradient is few fp32 numbers in the host's memory, one after another in its order of elements. What torch
// spends on the way to a copy does not matter with many, and its loop is then faster than memmove() on a Zen 4.
bool is_small_fp32(const at::Tensor& gradient) {
  constexpr std::int64_t few = 4096;
  return gradient.numel() <= few && gradient.is_cpu() && gradient.scalar_type() == at::kFloat &&
         gradient.has_storage() && !gradient._is_zerotensor() && !gradient.is_neg() && gradient.is_contiguous();
}

// The same bits as copy_() and add_(), without the microsecond or two of each that torch spends on the way to them, in
// which a thousand numbers are copied.
void put(std::span<float> place, const at::Tensor& gradient, bool adds) {
  const float* const values = gradient.data_ptr<float>();
  if (adds) {
    for (std::size_t i = 0; i < place.size(); ++i) place[i] += values[i];
  } else {
    std::copy_n(values, place.size(), place.data());
  }
}

// Faces of tensors that are trained are normal ones, also where torch::InferenceMode is around their making.
at::Tensor detached(const at::Tensor& tensor) {
  const c10::InferenceMode normal(false);
  return tensor.detach();
}

// Calls the hooks that users registered on a parameter. Later versions of libtorch have called them before.
at::Tensor hooked(const at::Tensor& parameter, at::Tensor gradient) {
  if constexpr (nodes_are_shared) {
    for (const auto& hook : ::torch::autograd::impl::hooks(parameter)) gradient = (*hook)({gradient}).front();
  }
  return gradient;
}

// Autograd's part of a parameter whose gradients go to windows: nothing is accumulated here, and whoever asks for it
// (torch's clipping, torch's optimizers) must hear that. zero_grad() asks by mutable_grad(), and is right.
class ParameterAutograd final : public ::torch::autograd::AutogradMeta {
 public:
  ParameterAutograd(::torch::autograd::AutogradMeta& former, std::shared_ptr<ParameterMark> mark)
      : mark_(std::move(mark)) {
    take_over(former, *this);
  }

  // Users have said this of the parameter, or hooked it.
  static void take_over(::torch::autograd::AutogradMeta& from, ::torch::autograd::AutogradMeta& to) {
    to.requires_grad_ = from.requires_grad_;
    to.name_ = std::move(from.name_);
    to.hooks_ = std::move(from.hooks_);
    to.cpp_hooks_list_ = std::move(from.cpp_hooks_list_);
  }

  const at::Tensor& grad() const override {
    throw UsageError(
        fmt::format("the gradient of parameter {0} was asked for, and goes to the ranks' shards: clip by the optimizer "
                    "(clip_norm) or by sharded().on_reduced_gradient(), train by model.update(), and look at it by "
                    "sharded().whole(model.parameter(\"{0}\"), \"gradient\") behind that; torch::optim and "
                    "clip_grad_… are not for it",
                    mark_->parameter));
  }
  at::Tensor& mutable_grad() override {
    // Later versions of libtorch ask, too, where they have nothing to accumulate.
    const NodePointer node = node_that_runs();
    if (!node || node != grad_accumulator_.lock()) mark_->gradient_asked = true;
    return grad_;
  }
  bool has_gradient() const { return grad_.defined(); }

 private:
  std::shared_ptr<ParameterMark> mark_;
};

void exchange_autograd(const at::Tensor& tensor, std::unique_ptr<::torch::autograd::AutogradMeta> meta) {
  tensor.unsafeGetTensorImpl()->set_autograd_meta(std::move(meta));
}

// Stands in front of autograd's own accumulation, and leaves nothing for it to do.
class GradientTaker : public ::torch::autograd::FunctionPreHook {
 public:
  GradientTaker(std::shared_ptr<ParameterMark> mark, ParameterTensor& parameter)
      : mark_(std::move(mark)), parameter_(parameter) {}

  ::torch::autograd::variable_list operator()(const ::torch::autograd::variable_list& gradients) override {
    if (!gradients.front().defined()) return gradients;
    if (mark_->owner == nullptr) {
      throw UsageError(fmt::format(
          "the gradient of parameter {} came when its FullyShard was gone: the backward pass of a loss comes before "
          "the end of its model",
          mark_->parameter));
    }
    if (!parameter_.tensor().requires_grad()) parameter_.refuse_change_inside_step();
    mark_->owner->take_gradient(mark_->unit, parameter_, hooked(parameter_.tensor(), gradients.front()));
    return {at::Tensor()};
  }

 private:
  std::shared_ptr<ParameterMark> mark_;
  ParameterTensor& parameter_;  // there while the mark has an owner
};

}  // namespace

void require_alone(const at::Tensor& own, const std::string& name) {
  constexpr std::size_t known = 2;  // the module's tensor and `own`
  if (!own.has_storage() || own.is_meta() || own.storage().use_count() <= known) return;
  throw UsageError(fmt::format(
      "{} shares its memory with another tensor (a view that was kept, detach(), set_data(), an archive that "
      "is open), which would not follow its training: keep a clone(), or tie layers by one tensor",
      name));
}

void require_exact(const at::Tensor& buffer, const std::string& name) {
  if (buffer.scalar_type() == at::kFloat || at::equal(buffer.to(at::kFloat).to(buffer.scalar_type()), buffer)) return;
  throw UsageError(fmt::format(
      "buffer {} is {} and has values that fp32 does not hold, in which buffers are saved: register it in fp32, or "
      "keep it as a member of the module that is no buffer",
      name, c10::toString(buffer.scalar_type())));
}

Shape shape_of(const at::Tensor& tensor) { return {tensor.sizes().begin(), tensor.sizes().end()}; }

at::Tensor view_of(void* data, at::IntArrayRef sizes, DType type, at::Device device) {
  const c10::InferenceMode normal(false);
  return at::from_blob(data, sizes, at::TensorOptions().dtype(torch_type(type)).device(device));
}

ParameterTensor::ParameterTensor(at::Tensor tensor, Parameter parameter, std::shared_ptr<ParameterMark> mark,
                                 at::Device device)
    : tensor_(std::move(tensor)),
      parameter_(std::move(parameter)),
      mark_(std::move(mark)),
      device_(device),
      own_(detached(tensor_)),
      hidden_(hidden_tensor(own_.sizes(), own_.options(), mark_)) {}

void ParameterTensor::show(Window& window) {
  void* data = address(precision_.parameter, [&]<typename T>(T) { return window.parameter<T>(parameter_); });
  if (shown_.defined()) {
    point_to(shown_, data);
  } else {
    shown_ = marked_tensor(data, tensor_.sizes(), hidden_.options(), mark_);
  }
  show_as(tensor_, shown_);
  mark_->shown = true;
}

void ParameterTensor::hide() {
  show_as(tensor_, hidden_);
  mark_->shown = false;
  if (shown_.defined()) point_to(shown_, nullptr);
}

void ParameterTensor::take_own() {
  at::Tensor now = detached(tensor_);
  if (now.sizes() != own_.sizes() || now.scalar_type() != own_.scalar_type() ||
      !(now.device() == own_.device() || now.is_cpu())) {
    throw UsageError(fmt::format(
        "parameter {} was given another type, shape or device ({} {} on {}) after FullyShard was made: change the "
        "module before, in fp32; the precision of windows is an option",
        name(), c10::toString(now.scalar_type()), tessera::to_string(shape_of(now)), now.device().str()));
  }
  own_ = std::move(now);
  hidden_ = hidden_tensor(own_.sizes(), own_.options(), mark_);
  require_alone(own_, "parameter " + name());
}

void ParameterTensor::watch_gradient() {
  tensor_.mutable_grad() = at::Tensor();
  take_gradient_asked();
  ::torch::autograd::impl::set_grad_accumulator(
      tensor_, WeakNodePointer(NodePointer()));  // an earlier one may know another type
  accumulator_ = ::torch::autograd::impl::grad_accumulator(tensor_);
  accumulator_->add_pre_hook(std::make_unique<GradientTaker>(mark_, *this));
}

void ParameterTensor::hand_over(const Precision& precision) {
  precision_ = precision;
  hidden_ = hidden_tensor(own_.sizes(), own_.options().dtype(torch_type(precision.parameter)).device(device_), mark_);
  show_as(tensor_, hidden_);
  own_ = at::Tensor();
  exchange_autograd(tensor_, std::make_unique<ParameterAutograd>(
                                 *::torch::autograd::impl::materialize_autograd_meta(tensor_), mark_));
  if (!parameter_.options().frozen) watch_gradient();
}

void ParameterTensor::let_go() {
  mark_->owner = nullptr;
  if (own_.defined()) return show_own();
  hide();
  auto plain = std::make_unique<::torch::autograd::AutogradMeta>();
  ParameterAutograd::take_over(*::torch::autograd::impl::materialize_autograd_meta(tensor_), *plain);
  exchange_autograd(tensor_, std::move(plain));
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
  const bool adds = std::exchange(written_in_, window_serial) == window_serial;
  if (device_.is_cpu() && precision_.gradient == DType::fp32 && gradient.sizes() == tensor_.sizes() &&
      is_small_fp32(gradient)) {
    put(window.gradient<float>(parameter_), gradient, adds);
  } else {
    adds ? gradient_in(window).add_(gradient) : gradient_in(window).copy_(gradient);
  }
}

at::Tensor ParameterTensor::gradient_in(Window& window) const {
  const DType type = precision_.gradient;
  void* data = address(type, [&]<typename T>(T) { return window.gradient<T>(parameter_); });
  return view_of(data, tensor_.sizes(), type, device_);
}

void ParameterTensor::keep_gradient(const at::Tensor& gradient, std::size_t window_serial) {
  written_in_ = window_serial;
  kept_gradient_ = kept_gradient_.defined() ? kept_gradient_ + gradient : gradient;
}

void ParameterTensor::give_gradient(Window& window, std::size_t window_serial) {
  const at::Tensor kept = std::exchange(kept_gradient_, {});
  if (kept.defined()) return take_gradient(window, window_serial, kept);
  if (window.trains(parameter_)) gradient_in(window).zero_();
}

bool ParameterTensor::has_given_gradient() const {
  return static_cast<const ParameterAutograd*>(tensor_.unsafeGetTensorImpl()->autograd_meta())->has_gradient();
}

void ParameterTensor::require_no_gradient() const {
  const at::Tensor& gradient = tensor_.grad();
  if (!gradient.defined() || !tensor_.requires_grad()) return;
  if (gradient.layout() == at::kStrided && gradient.count_nonzero().item<std::int64_t>() == 0) return;
  throw UsageError(fmt::format(
      "parameter {} has a gradient from before finalize(), which the first step would not count: drop it in front of "
      "that, by zero_grad() of the module",
      name()));
}

void ParameterTensor::refuse_change_inside_step() const {
  throw UsageError(fmt::format(
      "requires_grad of parameter {} changed inside a step: change it behind update(), or zero_grad()", name()));
}

void ParameterTensor::follow_requires_grad() {
  const bool trains = tensor_.requires_grad();
  parameter_.set_frozen(!trains);
  if (trains) watch_gradient();
}

BufferTensor::BufferTensor(at::Tensor tensor, std::string name, at::Device device)
    : tensor_(std::move(tensor)), name_(std::move(name)), buffer_(shape_of(tensor_)), device_(device) {}

void BufferTensor::require_same_shape() const {
  if (shape_of(tensor_) == buffer_.shape()) return;
  throw UsageError(
      fmt::format("buffer {} was given another shape ({} in place of {}) after FullyShard was made: change the module "
                  "before",
                  name_, tessera::to_string(shape_of(tensor_)), tessera::to_string(buffer_.shape())));
}

void BufferTensor::require_usable() const {
  require_same_shape();
  require_alone(detached(tensor_), "buffer " + name_);
}

void BufferTensor::show(std::span<float> values) {
  place_ = view_of(values.data(), tensor_.sizes(), DType::fp32, device_);
  if (tensor_.scalar_type() == at::kFloat) return show_as(tensor_, place_);
  if (tensor_.is_meta()) show_as(tensor_, at::empty(tensor_.sizes(), tensor_.options().device(device_)));
  take(place_);
}

void BufferTensor::move(std::span<float> values) {
  place_.storage().set_data_ptr(at::DataPtr(values.data(), place_.device()));
}

void BufferTensor::take(const at::Tensor& values) {
  const at::NoGradGuard no_graph;
  const c10::InferenceMode normal(false);
  tensor_.copy_(values);
  common_ = values.clone();
}

void BufferTensor::to_runtime() {
  if (const ParameterMark* const mark = mark_of(tensor_)) {
    throw UsageError(
        fmt::format("buffer {} was given the memory of parameter {}, which is whole in windows only: write its values "
                    "to the buffer (copy_())",
                    name_, mark->parameter));
  }
  if (!is_copied() && tensor_.is_alias_of(place_)) return;
  const at::NoGradGuard no_graph;
  const c10::InferenceMode normal(false);
  require_same_shape();
  require_exact(tensor_, name_);
  const at::Tensor values = tensor_.to(place_.options());
  if (is_copied() && at::equal(values, common_)) return;
  place_.copy_(values);
  if (!is_copied()) return show_as(tensor_, place_);
  common_ = place_.clone();
}

void BufferTensor::from_runtime() {
  if (is_copied() && !at::equal(place_, common_)) take(place_);
}

void BufferTensor::let_go() {
  if (!place_.defined()) return;
  const c10::InferenceMode normal(false);
  // Views of it that are left, and graphs that have saved it, have the same storage.
  place_.storage().set_data_ptr(place_.clone().storage().set_data_ptr(at::DataPtr()));
}

}  // namespace tessera::torch
