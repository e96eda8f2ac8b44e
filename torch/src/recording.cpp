// Tensors are known by their storages, so that views need no care: one is shown on the real storage as it was on the
// shape's. The number stands in the storage itself, in place of memory.
#include "src/recording.hpp"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_set>

#include "src/marked_storage.hpp"
#include "src/torch_generators.hpp"
#include "tessera/base/error.hpp"

namespace tessera::torch {

namespace {

struct StorageNumber {
  std::shared_ptr<Recording> recording;  // null in a stand-in, which its recording keeps
  std::size_t number;
};

void end_number(void* kept) { std::unique_ptr<StorageNumber>(static_cast<StorageNumber*>(kept)); }

void give_number(const at::Tensor& shape, std::shared_ptr<Recording> recording, std::size_t number) {
  auto kept = std::make_unique<StorageNumber>(StorageNumber{std::move(recording), number});
  shape.storage().set_data_ptr({nullptr, kept.release(), &end_number, at::Device(at::kMeta)});
  refuse_others(*shape.storage().unsafeGetStorageImpl(),
                "the memory of a tensor was asked for where a module is deferred, and it has a shape only: write its "
                "values by operators (copy_), and give one whose values the constructor reads a device (torch::kCPU)");
}

const StorageNumber* number_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return nullptr;
  const at::DataPtr& data = kept_by(tensor);
  return data.get_deleter() == &end_number ? static_cast<const StorageNumber*>(data.get_context()) : nullptr;
}

at::Tensor stand_in(const at::Tensor& shape, std::size_t number) {
  const at::Tensor place = at::empty_strided(shape.sizes(), shape.strides(), shape.options());
  place.unsafeGetTensorImpl()->set_storage_offset(shape.storage_offset());
  give_number(place, nullptr, number);
  return place;
}

// The value with each of its tensors replaced.
template <typename Replace>
c10::IValue with_tensors(const c10::IValue& value, Replace replace) {
  if (value.isTensor()) return replace(value.toTensor());
  if (value.isTensorList()) {
    auto tensors = value.toTensorVector();
    for (at::Tensor& tensor : tensors) tensor = replace(tensor);
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    auto tensors = value.toOptionalTensorVector();
    for (auto& tensor : tensors) {
      if (tensor.has_value()) tensor = replace(*tensor);
    }
    return tensors;
  }
  return value;
}

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  with_tensors(value, [&](const at::Tensor& tensor) {
    tensors.push_back(tensor);
    return tensor;
  });
  return tensors;
}

// The results end the stack.
std::vector<at::Tensor> results_in(const c10::OperatorHandle& called, const c10::Stack& stack) {
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : ::torch::jit::last(stack, called.schema().returns().size())) {
    for (const at::Tensor& tensor : tensors_in(value)) results.push_back(tensor);
  }
  return results;
}

// Where on the stack an operator that makes a tensor out of none is told its device, if it was not.
std::optional<std::size_t> open_device(const c10::OperatorHandle& called, const c10::Stack& stack) {
  const auto& arguments = called.schema().arguments();
  const std::size_t first = stack.size() - arguments.size();
  std::optional<std::size_t> device;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!tensors_in(stack[first + i]).empty()) return std::nullopt;
    if (arguments[i].name() == "device" && stack[first + i].isNone()) device = first + i;
  }
  return device;
}

// An inference tensor has no versions, and does not change in place outside of inference.
std::int64_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::uint64_t mixed(std::uint64_t seed, const std::string& owner, std::size_t place) {
  std::vector<std::uint32_t> words{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                                   static_cast<std::uint32_t>(place)};
  for (const char letter : owner) words.push_back(static_cast<unsigned char>(letter));
  return mixed_seed(words);
}

}  // namespace

std::shared_ptr<Recording> recording_of(const at::Tensor& tensor) {
  const StorageNumber* number = number_of(tensor);
  return number == nullptr ? nullptr : number->recording;
}

at::Tensor Recording::stand_in_for(const at::Tensor& argument, Operation& operation) const {
  if (!argument.defined()) return argument;
  const StorageNumber* number = number_of(argument);
  if (number == nullptr) {
    operation.given.emplace_back(argument, version_of(argument));
    return argument;
  }
  if (number->recording.get() != this) {
    throw UsageError(
        fmt::format("{} was given a tensor that was deferred elsewhere", operation.called.schema().name()));
  }
  operation.reads.push_back(number->number);
  return stand_in(argument, number->number);
}

void Recording::call(const c10::OperatorHandle& called, c10::Stack& stack) const {
  try {
    called.callBoxed(stack);
  } catch (const c10::Error& error) {
    throw UsageError(fmt::format(
        "{} failed where a module is deferred: {}. A tensor whose values the constructor needs must be told "
        "its device (torch::kCPU)",
        called.schema().name(), first_line(error.what_without_backtrace())));
  }
}

void Recording::run(const c10::OperatorHandle& called, c10::Stack& stack) {
  const auto& arguments = called.schema().arguments();
  Operation operation{.called = called, .place = operations_.size()};
  std::vector<std::pair<at::Tensor, std::int64_t>> changed;  // with versions
  bool has_generator = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& argument = stack[stack.size() - arguments.size() + i];
    operation.arguments.push_back(
        with_tensors(argument, [&](const at::Tensor& tensor) { return stand_in_for(tensor, operation); }));
    has_generator = has_generator || argument.isGenerator();
    if (arguments[i].alias_info() == nullptr || !arguments[i].alias_info()->isWrite()) continue;
    for (const at::Tensor& tensor : tensors_in(argument)) {
      if (number_of(tensor) != nullptr) changed.emplace_back(tensor, version_of(tensor));
    }
  }
  if (called.schema().name() == "aten::_has_compatible_shallow_copy_type") note_set_data(stack);
  if (const auto device = open_device(called, stack)) stack[*device] = at::Device(at::kMeta);
  call(called, stack);
  for (const auto& [tensor, version] : changed) {
    const std::size_t number = number_of(tensor)->number;
    operation.writes.push_back(number);
    changes_[number] += version_of(tensor) - version;
  }
  take_results(stack, operation);
  if (operation.writes.empty()) return;
  if (has_generator) {
    throw UsageError(fmt::format("{} was given a generator where a module is deferred: its numbers come from a seed",
                                 called.schema().name()));
  }
  for (const std::size_t written : operation.writes) {
    std::vector<std::size_t>& writers = writers_[written];
    if (writers.empty() || writers.back() != operations_.size()) writers.push_back(operations_.size());
  }
  operations_.push_back(std::move(operation));
}

// set_data(), as clone() of torch's modules calls it, asks this first: the tensor keeps its version, which is then that
// of other memory.
void Recording::note_set_data(const c10::Stack& stack) {
  const at::Tensor& tensor = stack[stack.size() - 2].toTensor();
  const StorageNumber* number = number_of(stack.back().toTensor());
  if (number != nullptr) changes_[number->number] = std::max(changes_[number->number], version_of(tensor));
}

void Recording::take_results(const c10::Stack& stack, Operation& operation) {
  const std::vector<at::Tensor> results = results_in(operation.called, stack);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const at::Tensor& result = results[i];
    if (!result.defined() || !result.is_meta() || number_of(result) != nullptr) continue;
    const std::size_t number = storages_++;
    give_number(result, shared_from_this(), number);
    operation.made.emplace_back(i, stand_in(result, number));
    operation.writes.push_back(number);
    changes_[number] = version_of(result);
  }
}

// Backwards through the operations: what one of them reads, earlier ones may have written.
std::vector<std::size_t> Recording::needed_for(std::size_t storage) const {
  std::set<std::size_t> needed;
  std::unordered_set<std::size_t> wanted;
  const auto want = [&](std::size_t wished, std::size_t before) {
    if (!wanted.insert(wished).second) return;
    const auto writers = writers_.find(wished);
    if (writers == writers_.end()) return;
    const std::vector<std::size_t>& places = writers->second;
    needed.insert(places.begin(), std::lower_bound(places.begin(), places.end(), before));
  };
  want(storage, operations_.size());
  for (auto next = needed.rbegin(); next != needed.rend(); ++next) {
    for (const std::size_t read : operations_[*next].reads) want(read, *next);
  }
  return {needed.begin(), needed.end()};
}

void Recording::name(const at::Tensor& tensor, const std::string& name) {
  std::size_t place = 0;
  for (const std::size_t index : needed_for(number_of(tensor)->number)) {
    Operation& operation = operations_[index];
    if (!operation.owner.empty()) continue;
    operation.owner = name;
    operation.place = place++;
  }
}

void Recording::require_complete(const at::Tensor& tensor, const std::string& name) const {
  if (version_of(tensor) <= changes_.at(number_of(tensor)->number)) return;
  throw UsageError(fmt::format("{} was changed after Deferred had ended, which would be lost: do it inside", name));
}

void Recording::repeat(const Operation& operation, Storages& storages) const {
  const std::string& name = operation.called.schema().name();
  for (const auto& [tensor, version] : operation.given) {
    if (version_of(tensor) == version) continue;
    throw UsageError(fmt::format("a tensor that {} was given where a module was deferred has changed since", name));
  }
  c10::Stack stack;
  for (const c10::IValue& argument : operation.arguments) {
    stack.push_back(with_tensors(argument, [&](const at::Tensor& tensor) {
      const StorageNumber* number = number_of(tensor);
      if (number == nullptr) return tensor;
      return at::empty({0}, tensor.options().device(at::kCPU))
          .set_(storages.at(number->number), tensor.storage_offset(), tensor.sizes(), tensor.strides());
    }));
  }
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(mixed(seed_, operation.owner, operation.place));
  }
  operation.called.callBoxed(stack);
  const std::vector<at::Tensor> results = results_in(operation.called, stack);
  for (const auto& [place, shape] : operation.made) {
    at::Tensor result = results.at(place);
    if (!result.is_cpu() || result.sizes() != shape.sizes() || result.storage_offset() != shape.storage_offset()) {
      throw UsageError(fmt::format("{} made another tensor than where a module was deferred", name));
    }
    if (result.strides() != shape.strides()) {
      result = at::empty_strided(shape.sizes(), shape.strides(), result.options()).copy_(result);
    }
    storages.emplace(number_of(shape)->number, result.storage());
  }
}

at::Tensor Recording::values(const at::Tensor& tensor) const {
  const std::size_t number = number_of(tensor)->number;
  const auto alone = generators_alone();
  const c10::InferenceMode normal(false);
  const at::NoGradGuard no_graph;
  const GeneratorStates before(at::kCPU);
  Storages storages;
  try {
    for (const std::size_t index : needed_for(number)) repeat(operations_[index], storages);
  } catch (...) {
    before.restore();
    throw;
  }
  before.restore();
  return at::empty({0}, tensor.options().device(at::kCPU))
      .set_(storages.at(number), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

}  // namespace tessera::torch
