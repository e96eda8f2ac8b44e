// While one lives, every operator that its thread calls comes to it first: by a dispatch key that torch leaves to
// others, above all others, and for this thread alone. One inside of another takes its place; they may end in any
// order.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tessera::torch {

class OperatorMode {
 public:
  static constexpr c10::DispatchKey key = c10::DispatchKey::TESTING_ONLY_GenericMode;
  static OperatorMode* here();  // null: there is none on this thread

  OperatorMode(const OperatorMode&) = delete;
  OperatorMode& operator=(const OperatorMode&) = delete;

  // `behind`: the keys that the operator has beside this one.
  virtual void call(const c10::OperatorHandle& operation, c10::DispatchKeySet behind, c10::Stack& stack) = 0;

 protected:
  OperatorMode();
  virtual ~OperatorMode();

 private:
  OperatorMode* outer_;
};

}  // namespace tessera::torch
