// States of generators are tensors of bytes.
#include "src/torch_generators.hpp"

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include <algorithm>

namespace tessera::torch {

std::unique_lock<std::mutex> generators_alone() {
  static std::mutex mutex;
  return std::unique_lock<std::mutex>(mutex);
}

GeneratorStates::GeneratorStates(at::Device device) {
  generators_.push_back(at::globalContext().defaultGenerator(at::kCPU));
  if (!device.is_cpu()) generators_.push_back(at::globalContext().defaultGenerator(device));
  for (at::Generator& generator : generators_) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.push_back(generator.get_state());
  }
}

void GeneratorStates::restore() const {
  for (std::size_t i = 0; i < generators_.size(); ++i) {
    at::Generator generator = generators_[i];
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(states_[i]);
  }
}

bool GeneratorStates::operator==(const GeneratorStates& other) const {
  return std::equal(states_.begin(), states_.end(), other.states_.begin(), other.states_.end(),
                    [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); });
}

}  // namespace tessera::torch
