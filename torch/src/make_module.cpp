// Operators that draw get the generator among their arguments, so that what other threads draw does not matter.
#include "tessera/torch/make_module.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <algorithm>

#include "src/operator_mode.hpp"
#include "src/torch_generators.hpp"
#include "tessera/base/error.hpp"

namespace tessera::torch {

namespace {

bool is_elsewhere(const c10::IValue& argument) {
  if (argument.isTensor()) return argument.toTensor().defined() && !argument.toTensor().is_cpu();
  return argument.isDevice() && !argument.toDevice().is_cpu();
}

}  // namespace

class SeededGenerator::Scope final : public OperatorMode {
 public:
  explicit Scope(std::uint64_t seed) : generator_(at::detail::createCPUGenerator(seed)) {
    const auto alone = generators_alone();
    at::manual_seed(seed);
  }
  // Torch's own goes on from where this one has come to.
  ~Scope() override {
    const auto alone = generators_alone();
    at::Generator torchs = at::globalContext().defaultGenerator(at::kCPU);
    const std::lock_guard<std::mutex> lock(torchs.mutex());
    torchs.set_state(generator_.get_state());
  }

  void call(const c10::OperatorHandle& operation, c10::DispatchKeySet behind, c10::Stack& stack) override {
    const auto& arguments = operation.schema().arguments();
    const auto given = stack.end() - static_cast<std::ptrdiff_t>(arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& argument = given[static_cast<std::ptrdiff_t>(i)];
      if (arguments[i].name() != "generator" || !argument.isNone()) continue;
      if (std::none_of(given, stack.end(), is_elsewhere)) argument = generator_;
    }
    operation.redispatchBoxed(behind, &stack);
  }

 private:
  at::Generator generator_;
};

SeededGenerator::SeededGenerator(std::uint64_t seed) {
  if (OperatorMode::here() != nullptr) {
    throw UsageError("a SeededGenerator (make_module()) was made inside of another one, or of a Deferred");
  }
  scope_ = std::make_unique<Scope>(seed);
}
SeededGenerator::~SeededGenerator() = default;

}  // namespace tessera::torch
