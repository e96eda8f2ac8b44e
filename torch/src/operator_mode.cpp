// The key's fallback.
#include "src/operator_mode.hpp"

#include <torch/library.h>

#include <utility>

namespace tessera::torch {

namespace {

thread_local OperatorMode* mode_here = nullptr;

void call_mode(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, c10::Stack* stack) {
  const c10::DispatchKeySet behind = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, OperatorMode::key);
  // Torch gives its threads the keys of whoever has work for them.
  if (mode_here == nullptr) return operation.redispatchBoxed(behind, stack);
  mode_here->call(operation, behind, *stack);
}

}  // namespace

OperatorMode* OperatorMode::here() { return mode_here; }

OperatorMode::OperatorMode() : outer_(std::exchange(mode_here, this)) {
  c10::impl::tls_set_dispatch_key_included(key, true);
}

OperatorMode::~OperatorMode() {
  OperatorMode** place = &mode_here;
  while (*place != nullptr && *place != this) place = &(*place)->outer_;
  if (*place != nullptr) *place = outer_;
  if (mode_here == nullptr) c10::impl::tls_set_dispatch_key_included(key, false);
}

}  // namespace tessera::torch

// At global scope, because the macro says torch:: where it stands.
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&tessera::torch::call_mode>());
}
