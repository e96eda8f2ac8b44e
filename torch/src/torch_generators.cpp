// States of generators are tensors of bytes.
#include "src/torch_generators.hpp"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>

#include "src/generator_mode.hpp"

namespace tessera::torch {

namespace {

struct ThreadDraws {
  std::size_t draws = 0;
  std::size_t counts = 0;  // that live
  at::CallbackHandle called = 0;
};

thread_local ThreadDraws thread_draws;

bool draws_numbers(const c10::OperatorHandle& operation) {
  if (operation.hasTag(at::Tag::nondeterministic_seeded)) return true;
  const auto& arguments = operation.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& argument) { return argument.name() == "generator"; });
}

std::unique_ptr<at::ObserverContext> note_call(const at::RecordFunction& call) {
  const auto name = call.operator_name();
  if (!name) return nullptr;
  const auto operation = c10::Dispatcher::singleton().findSchema(*name);
  if (operation && draws_numbers(*operation)) ++thread_draws.draws;
  return nullptr;
}

}  // namespace

DrawCount::DrawCount() : before_(thread_draws.draws) {
  if (thread_draws.counts++ > 0) return;
  thread_draws.called =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&note_call).scopes({at::RecordScope::FUNCTION}));
}

DrawCount::~DrawCount() {
  if (--thread_draws.counts == 0) at::removeCallback(thread_draws.called);
}

std::size_t DrawCount::draws() const { return thread_draws.draws - before_; }

std::uint64_t mixed_seed(const std::vector<std::uint32_t>& words) {
  std::array<std::uint32_t, 2> result{};
  std::seed_seq(words.begin(), words.end()).generate(result.begin(), result.end());
  return std::uint64_t{result[1]} << 32 | result[0];
}

std::unique_lock<std::mutex> generators_alone() {
  static std::mutex mutex;
  return std::unique_lock<std::mutex>(mutex);
}

GeneratorStates::GeneratorStates(at::Device device) {
  const at::Generator own = GeneratorMode::here();
  generators_.push_back(own.defined() ? own : at::globalContext().defaultGenerator(at::kCPU));
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
