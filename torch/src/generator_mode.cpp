// Operators without such an argument draw by those that have one.
#include "src/generator_mode.hpp"

#include <algorithm>

namespace tessera::torch {

namespace {

bool is_elsewhere(const c10::IValue& argument) {
  if (argument.isTensor()) return argument.toTensor().defined() && !argument.toTensor().is_cpu();
  return argument.isDevice() && !argument.toDevice().is_cpu();
}

}  // namespace

at::Generator GeneratorMode::here() {
  const auto* const mode = dynamic_cast<const GeneratorMode*>(OperatorMode::here());
  return mode == nullptr ? at::Generator() : mode->generator_;
}

void GeneratorMode::call(const c10::OperatorHandle& operation, c10::DispatchKeySet behind, c10::Stack& stack) {
  const auto& arguments = operation.schema().arguments();
  const auto given = stack.end() - static_cast<std::ptrdiff_t>(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& argument = given[static_cast<std::ptrdiff_t>(i)];
    if (arguments[i].name() != "generator" || !argument.isNone()) continue;
    if (std::none_of(given, stack.end(), is_elsewhere)) argument = generator_;
  }
  operation.redispatchBoxed(behind, &stack);
}

}  // namespace tessera::torch
