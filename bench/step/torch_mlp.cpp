// The perceptron of mlp.cpp as a module of libtorch, sharded by tessera::torch: what torch computes and what the
// runtime moves, beside PyTorch's own DDP and FSDP2 (bench/compare.py).
#include <torch/torch.h>

#include <memory>
#include <optional>

#include "measure/timing.hpp"
#include "step/timed_optimizer.hpp"
#include "step/training.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/weights.hpp"
#include "tessera/torch/fully_shard.hpp"
#include "tessera/torch/make_module.hpp"

namespace bench {

namespace {

namespace nn = torch::nn;

constexpr std::int64_t classes = 10;

// Its parameters are named as those of models/mlp.
struct Net : nn::Module {
  explicit Net(const StepOptions& options) {
    const auto width = static_cast<std::int64_t>(options.width);
    input = register_module("input", nn::Linear(width, width));
    for (std::size_t i = 1; i < options.layers; ++i) hidden->push_back(nn::Linear(width, width));
    register_module("hidden", hidden);
    output = register_module("output", nn::Linear(width, classes));
  }
  torch::Tensor forward(const torch::Tensor& features, const torch::Tensor& labels) {
    torch::Tensor x = torch::gelu(input(features), "tanh");
    for (const auto& layer : *hidden) x = torch::gelu(layer->as<nn::Linear>()->forward(x), "tanh");
    // In fp32, as autocast does: in bf16 a loss of 2 has steps of 1/64, and a few steps of training would not show.
    return torch::cross_entropy_loss(output(x).to(torch::kFloat), labels);
  }
  nn::Linear input{nullptr}, output{nullptr};
  nn::ModuleList hidden;
};

}  // namespace

const char* const model_name = "perceptron of libtorch";

StepOptions default_options() { return {.batch = 64, .width = 2048, .layers = 8}; }

StepTimes train(tessera::World& world, const StepOptions& options) {
  const auto rows = static_cast<std::int64_t>(options.batch);
  const auto width = static_cast<std::int64_t>(options.width);
  const torch::Tensor numbers = torch::arange(rows) + world.rank() * rows;
  const torch::Tensor features =
      ((numbers.view({rows, 1}) * 131 + torch::arange(width) * 31) % 257).to(torch::kFloat) / 128 - 1;
  const torch::Tensor labels = numbers % classes;
  OptimizerTime optimizer;
  tessera::torch::FullyShard model(
      world, tessera::torch::make_module<Net>(1, options),
      {.units = tessera::torch::where([](std::string_view, const nn::Module& part) { return part.as<nn::Linear>(); })},
      {.strategy = options.strategy, .precision = options.precision});
  model.finalize(std::make_unique<TimedOptimizer>(tessera::AdamW{.learning_rate = learning_rate}, optimizer));
  if (options.weights) tessera::dump_weights(model.sharded(), *options.weights);
  std::optional<tessera::Trace> trace;
  if (options.trace) {
    trace = model.sharded().trace({.first = options.warm_up + 1, .last = options.warm_up + options.steps});
  }
  const torch::Tensor seen =
      options.precision.parameter == tessera::DType::fp32 ? features : features.to(torch::kBFloat16);
  StepTimes times;
  for (std::size_t step = 0; step < options.warm_up + options.steps; ++step) {
    optimizer.seconds = 0.0;
    const Clock::time_point start = Clock::now();
    const torch::Tensor loss = model.forward(seen, labels);
    model.backward(loss);
    model.update();
    if (model.last_step().skipped) throw tessera::InternalError("a step's gradient was not finite");
    times.losses.push_back(world.average(loss.item<float>(), "loss"));
    if (step < options.warm_up) continue;
    times.seconds.push_back(seconds_since(start));
    times.optimizer.push_back(optimizer.seconds);
  }
  if (trace) trace->write(*options.trace);
  return times;
}

// Torch's own, which is not taken apart.
Products products(const StepOptions&) { return {}; }

}  // namespace bench
