// The key's fallback, which every operator comes to that has a hidden tensor among its arguments.
#include "src/hidden_tensor.hpp"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <string>
#include <utility>

#include "src/marked_storage.hpp"
#include "tessera/base/error.hpp"

namespace tessera::torch {

namespace {

constexpr c10::DispatchKey hidden_key = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

using MarkHolder = std::shared_ptr<HiddenMark>;

const HiddenMark* mark_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(hidden_key)) return nullptr;
  return static_cast<MarkHolder*>(kept_by(tensor).get_context())->get();
}

const HiddenMark* mark_in(const c10::IValue& value) {
  if (value.isTensor()) return mark_of(value.toTensor());
  if (!value.isList()) return nullptr;
  for (const c10::IValue& element : value.toListRef()) {
    if (const HiddenMark* mark = mark_in(element)) return mark;
  }
  return nullptr;
}

const HiddenMark* first_mark(const c10::OperatorHandle& operation, const c10::Stack& stack) {
  for (const c10::IValue& argument : ::torch::jit::last(stack, operation.schema().arguments().size())) {
    if (const HiddenMark* mark = mark_in(argument)) return mark;
  }
  return nullptr;
}

void make_whole(const c10::OperatorHandle& operation, c10::Stack* stack) {
  const HiddenMark* first = first_mark(operation, *stack);
  if (first == nullptr) throw InternalError("a hidden tensor is not where an operator has its arguments");
  const std::string& name = operation.schema().name();
  if (first->owner == nullptr) {
    throw UsageError(fmt::format("{} was given parameter {}, whose FullyShard is gone, and its values with it", name,
                                 first->parameter));
  }
  first->owner->about_to_use(first->unit, first->parameter, name);
  if (const HiddenMark* second = first_mark(operation, *stack)) {
    throw UsageError(fmt::format("{} takes parameters of two units, {} and {}: they must be of one", name,
                                 first->parameter, second->parameter));
  }
  operation.callBoxed(stack);
}

}  // namespace

at::Tensor hidden_tensor(at::IntArrayRef sizes, const at::TensorOptions& options, std::shared_ptr<HiddenMark> mark) {
  const c10::InferenceMode normal(false);
  const at::Tensor ordinary = at::empty({0}, options);
  const std::string text = fmt::format(
      "the memory of parameter {} was asked for outside of its unit's window, where it has none: it is whole only "
      "while "
      "model->… computes",
      mark->parameter);
  auto holder = std::make_unique<MarkHolder>(std::move(mark));
  at::DataPtr nothing(
      nullptr, holder.release(), [](void* kept) { std::unique_ptr<MarkHolder>(static_cast<MarkHolder*>(kept)); },
      ordinary.device());
  at::Storage storage(at::Storage::use_byte_size_t(), 0, std::move(nothing), nullptr, false);
  refuse_others(*storage.unsafeGetStorageImpl(), text);
  auto hidden =
      c10::make_intrusive<at::TensorImpl>(std::move(storage), ordinary.key_set().add(hidden_key), ordinary.dtype());
  hidden->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(hidden));
}

void show_as(const at::Tensor& tensor, const at::Tensor& face) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(face.getIntrusivePtr());
}

}  // namespace tessera::torch

// At global scope, because the macro says torch:: where it stands.
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&tessera::torch::make_whole>());
}
