// Seeds are a function of the model's, the step and the granule.
#include "src/granule_generators.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

#include "src/torch_generators.hpp"

namespace tessera::torch {

namespace {

std::uint64_t seed_of(const GranuleOfStep& of) {
  std::vector<std::uint32_t> words;
  for (const std::uint64_t number : {of.seed, of.step, of.granule}) {
    words.push_back(static_cast<std::uint32_t>(number));
    words.push_back(static_cast<std::uint32_t>(number >> 32));
  }
  return mixed_seed(words);
}

at::Tensor exchange_state(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  at::Tensor before = generator.get_state();
  generator.set_state(state);
  return before;
}

at::Tensor seeded_state(at::Generator& generator, std::uint64_t seed) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  const at::Tensor before = generator.get_state();
  generator.set_current_seed(seed);
  at::Tensor seeded = generator.get_state();
  generator.set_state(before);
  return seeded;
}

}  // namespace

GranuleGenerators::GranuleGenerators(at::Device device) : cpu_(at::detail::createCPUGenerator()) {
  if (!device.is_cpu()) device_ = at::globalContext().defaultGenerator(device);
}

void GranuleGenerators::begin(const GranuleOfStep& granule) {
  const std::uint64_t seed = seed_of(granule);
  cpu_.set_current_seed(seed);
  if (device_.defined()) state_on_device_ = seeded_state(device_, seed);
}

void GranuleGenerators::enter() {
  mode_.emplace(cpu_);
  if (device_.defined()) state_on_device_ = exchange_state(device_, state_on_device_);
}

void GranuleGenerators::leave() noexcept {
  if (!mode_) return;
  if (device_.defined()) state_on_device_ = exchange_state(device_, state_on_device_);
  mode_.reset();
}

}  // namespace tessera::torch
