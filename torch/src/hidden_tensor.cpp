// The key's fallback, which every operator comes to that has a parameter or a view of one among its arguments.
#include "src/hidden_tensor.hpp"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/batch_norm_ops.h>
#include <ATen/ops/conv2d_ops.h>
#include <ATen/ops/conv_transpose2d_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/t_ops.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <string_view>
#include <type_traits>
#include <utility>

#include "src/marked_storage.hpp"
#include "tessera/base/error.hpp"

namespace tessera::torch {

namespace {

constexpr c10::DispatchKey parameter_key = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

using MarkHolder = std::shared_ptr<ParameterMark>;

void end_mark(void* kept) { std::unique_ptr<MarkHolder>(static_cast<MarkHolder*>(kept)); }

at::DataPtr marked_memory(void* data, MarkHolder mark, at::Device device) {
  return {data, std::make_unique<MarkHolder>(std::move(mark)).release(), &end_mark, device};
}

const ParameterMark* mark_in(const at::DataPtr& kept) {
  return kept.get_deleter() == &end_mark ? static_cast<MarkHolder*>(kept.get_context())->get() : nullptr;
}

// Calls `see(tensor, mark)` for each tensor in the value that has a mark.
template <typename See>
void for_each_mark(const c10::IValue& value, const See& see) {
  if (value.isTensor()) {
    if (const ParameterMark* mark = mark_of(value.toTensor())) see(value.toTensor(), *mark);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_mark(element, see);
  }
}

// set_data() asks this of the tensor that it writes to, which comes first, and is no operator itself.
constexpr const char* asked_by_set_data = "aten::_has_compatible_shallow_copy_type";

// The call that errors name.
const std::string& in_words(const std::string& operation) {
  static const std::string set_data = "set_data()";
  return operation == asked_by_set_data ? set_data : operation;
}

bool writes(const c10::FunctionSchema& operation, std::size_t argument) {
  const std::string& name = operation.name();
  if (name == asked_by_set_data) return argument == 0;
  if (name == "aten::set_") return true;  // what takes its memory over could write to it, unseen
  const c10::AliasInfo* const alias = operation.arguments()[argument].alias_info();
  // These two change what autograd knows of a tensor, and no value.
  return alias != nullptr && alias->isWrite() && name != "aten::requires_grad_" && name != "aten::retain_grad";
}

[[noreturn]] void refuse_write(std::string_view operation, const ParameterMark& mark) {
  throw UsageError(fmt::format(
      "{} was to write parameter {}, whose values are the shards', so that it would be lost: between steps, write to "
      "the shards (model.sharded().pieces()) and call model.sharded().shards_changed(); files are loaded before "
      "finalize(), or by load_weights(model.sharded(), file)",
      operation, mark.parameter));
}

void ask(std::string_view operation, const ParameterMark& mark, bool to_write) {
  if (mark.owner == nullptr) {
    throw UsageError(fmt::format("{} was given parameter {}, whose FullyShard is gone, and its values with it",
                                 operation, mark.parameter));
  }
  if (to_write) refuse_write(operation, mark);
  if (!mark.shown) mark.owner->about_to_use(mark.unit, mark.parameter, std::string(operation));
}

// A window that was opened for a later argument may have hidden an earlier one.
void require_shown(std::string_view operation, const at::Tensor& tensor, const ParameterMark& mark,
                   const ParameterMark& last) {
  if (!mark.shown) {
    throw UsageError(
        fmt::format("{} takes parameters of two units, {} and {}: make one unit of both (.units = "
                    "tessera::torch::named({{…}})), or give it a clone() of one",
                    operation, mark.parameter, last.parameter));
  }
  if (kept_by(tensor).get() != nullptr || tensor.numel() == 0) return;
  throw UsageError(fmt::format(
      "{} was given what data() made of parameter {} while it had no values: take it inside of the pass, once its unit "
      "computes",
      operation, mark.parameter));
}

void make_whole(const c10::OperatorHandle& operation, c10::Stack* stack) {
  const std::string& name = in_words(operation.schema().name());
  const auto& arguments = operation.schema().arguments();
  const auto given = ::torch::jit::last(*stack, arguments.size());
  const ParameterMark* last = nullptr;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    for_each_mark(given[i], [&](const at::Tensor&, const ParameterMark& mark) {
      ask(name, mark, writes(operation.schema(), i));
      last = &mark;
    });
  }
  for (const c10::IValue& argument : given) {
    for_each_mark(argument, [&](const at::Tensor& tensor, const ParameterMark& mark) {
      require_shown(name, tensor, mark, *last);
    });
  }
  const c10::impl::ExcludeDispatchKeyGuard itself(parameter_key);
  operation.callBoxed(stack);
}

// Calls `see(tensor, mark)` where the argument of an operator is a tensor that has a mark.
template <typename Argument, typename See>
void see_mark(const Argument& argument, const See& see) {
  if constexpr (std::is_same_v<Argument, at::Tensor>) {
    if (const ParameterMark* mark = mark_of(argument)) see(argument, *mark);
  } else if constexpr (std::is_same_v<Argument, c10::optional<at::Tensor>>) {
    if (argument) see_mark(*argument, see);
  }
}

// make_whole() for one operator that takes single tensors and writes to none of them, by its own signature: boxes for
// all arguments, there and back, take as long as a small layer computes.
template <typename Operator, typename Signature = typename Operator::schema>
struct Direct;
template <typename Operator, typename Result, typename... Arguments>
struct Direct<Operator, Result(Arguments...)> {
  static Result call(Arguments... arguments) {
    const ParameterMark* last = nullptr;
    (see_mark(arguments,
              [&](const at::Tensor&, const ParameterMark& mark) {
                ask(Operator::name, mark, false);
                last = &mark;
              }),
     ...);
    (see_mark(arguments, [&](const at::Tensor& tensor,
                             const ParameterMark& mark) { require_shown(Operator::name, tensor, mark, *last); }),
     ...);
    const c10::impl::ExcludeDispatchKeyGuard itself(parameter_key);
    return Operator::call(std::forward<Arguments>(arguments)...);
  }
};

// A storage is no tensor, so it has no key, and set_() makes tensors of storages that no window knows.
void refuse_storage(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, c10::Stack* stack) {
  for (const c10::IValue& argument : ::torch::jit::last(*stack, operation.schema().arguments().size())) {
    if (!argument.isStorage()) continue;
    const ParameterMark* const mark = mark_in(kept_by(*argument.toStorage().unsafeGetStorageImpl()));
    if (mark == nullptr) continue;
    throw UsageError(fmt::format(
        "the storage of parameter {} was asked for, as torch::save() does, and is its unit's window: save a plain "
        "module that model.copy_to() has filled, or tessera::dump_weights(model.sharded(), file); in a pass, a clone()",
        mark->parameter));
  }
  const c10::DispatchKeySet behind(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
  operation.redispatchBoxed(keys & behind, stack);
}

// `mark`'s tensor of the shape, over memory that it does not own.
at::Tensor tensor_over(void* data, std::size_t bytes, at::IntArrayRef sizes, const at::TensorOptions& options,
                       MarkHolder mark) {
  const c10::InferenceMode normal(false);
  const at::Tensor ordinary = at::empty({0}, options);
  at::Storage storage(at::Storage::use_byte_size_t(), bytes, marked_memory(data, std::move(mark), ordinary.device()),
                      nullptr, false);
  auto impl =
      c10::make_intrusive<at::TensorImpl>(std::move(storage), ordinary.key_set().add(parameter_key), ordinary.dtype());
  impl->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(impl));
}

}  // namespace

const ParameterMark* mark_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(parameter_key) ? mark_in(kept_by(tensor)) : nullptr;
}

at::Tensor hidden_tensor(at::IntArrayRef sizes, const at::TensorOptions& options, std::shared_ptr<ParameterMark> mark) {
  const std::string text = fmt::format(
      "the memory of parameter {} was asked for outside of its unit's window, where it has none: it is whole only "
      "while model->… computes",
      mark->parameter);
  at::Tensor hidden = tensor_over(nullptr, 0, sizes, options, mark);
  // Whoever would copy the storage by itself (torch::save of 1.13) finds that it is on no device.
  hidden.storage().set_data_ptr(marked_memory(nullptr, std::move(mark), at::kMeta));
  refuse_others(*hidden.storage().unsafeGetStorageImpl(), text);
  return hidden;
}

at::Tensor marked_tensor(void* data, at::IntArrayRef sizes, const at::TensorOptions& options,
                         std::shared_ptr<ParameterMark> mark) {
  const auto elements = static_cast<std::size_t>(c10::multiply_integers(sizes));
  return tensor_over(data, elements * options.dtype().itemsize(), sizes, options, std::move(mark));
}

// Often, so that the mark stays where it is.
void point_to(const at::Tensor& marked, void* data) {
  at::DataPtr before = marked.storage().set_data_ptr(at::DataPtr());
  marked.storage().set_data_ptr(at::DataPtr(data, before.release_context(), &end_mark, marked.device()));
}

void show_as(const at::Tensor& tensor, const at::Tensor& face) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(face.getIntrusivePtr());
}

}  // namespace tessera::torch

// At global scope, because the macro says torch:: where it stands.
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&tessera::torch::make_whole>());
}

// Operators of layers that many programs have.
TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, library) {
  using namespace at::_ops;
  library.impl("batch_norm", &tessera::torch::Direct<batch_norm>::call);
  library.impl("conv2d", &tessera::torch::Direct<conv2d>::call);
  library.impl("conv_transpose2d.input", &tessera::torch::Direct<conv_transpose2d_input>::call);
  library.impl("convolution_backward", &tessera::torch::Direct<convolution_backward>::call);
  library.impl("layer_norm", &tessera::torch::Direct<layer_norm>::call);
  library.impl("linear", &tessera::torch::Direct<linear>::call);
  library.impl("mm", &tessera::torch::Direct<mm>::call);
  library.impl("native_batch_norm_backward", &tessera::torch::Direct<native_batch_norm_backward>::call);
  library.impl("native_layer_norm_backward", &tessera::torch::Direct<native_layer_norm_backward>::call);
  library.impl("t", &tessera::torch::Direct<t>::call);
}

// Every operator on tensors with memory comes by this key, which has no kernel of its own for these two.
TORCH_LIBRARY_IMPL(aten, BackendSelect, library) {
  for (const char* const name : {"set_.source_Storage", "set_.source_Storage_storage_offset"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&tessera::torch::refuse_storage>());
  }
}
