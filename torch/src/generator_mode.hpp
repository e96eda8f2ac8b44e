// While one lives, what this thread's operators draw on the CPU comes from its generator, which they get among their
// arguments: what other threads draw does not matter, and torch's own generator stays where it is.
#pragma once

#include <ATen/core/Generator.h>

#include <utility>

#include "src/operator_mode.hpp"

namespace tessera::torch {

class GeneratorMode final : public OperatorMode {
 public:
  explicit GeneratorMode(at::Generator generator) : generator_(std::move(generator)) {}

  // The generator of the mode that this thread is in; undefined where that is another one, or none.
  static at::Generator here();

  const at::Generator& generator() const { return generator_; }
  void call(const c10::OperatorHandle& operation, c10::DispatchKeySet behind, c10::Stack& stack) override;

 private:
  at::Generator generator_;
};

}  // namespace tessera::torch
