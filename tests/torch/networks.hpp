// Modules of libtorch for the tests of torch, and how they are trained: sharded over ranks that are threads, and
// plainly.
#pragma once

#include <torch/torch.h>
// Torch's logging has a CHECK, too.
#undef CHECK
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/run.hpp"
#include "tessera/tessera.hpp"
#include "tessera/torch/checkpoint.hpp"
#include "tessera/torch/fully_shard.hpp"
#include "tessera/torch/make_module.hpp"

namespace networks {

namespace nn = torch::nn;

// The tests ask a module for a forward pass and for which units it has.
struct Network : nn::Module {
  virtual torch::Tensor forward(const torch::Tensor& input) = 0;
};

struct Perceptron : Network {
  Perceptron() {
    first = register_module("first", nn::Linear(7, 13));
    for (int i = 0; i < 3; ++i) blocks->push_back(nn::Linear(13, 13));
    register_module("blocks", blocks);
    last = register_module("last", nn::Linear(13, 3));
  }
  torch::Tensor forward(const torch::Tensor& input) override {
    torch::Tensor x = torch::tanh(first(input));
    for (const auto& block : *blocks) x = x + torch::tanh(block->as<nn::Linear>()->forward(x));
    return last(x);
  }
  nn::Linear first{nullptr}, last{nullptr};
  nn::ModuleList blocks;
};

struct Convolutions : Network {
  Convolutions() {
    layers->push_back("convolution", nn::Conv2d(nn::Conv2dOptions(1, 4, 3).padding(1)));
    layers->push_back("norm", nn::BatchNorm2d(4));
    layers->push_back("relu", nn::ReLU());
    layers->push_back("pool", nn::MaxPool2d(2));
    layers->push_back("flatten", nn::Flatten());
    layers->push_back("linear", nn::Linear(4 * 3 * 3, 3));
    register_module("layers", layers);
  }
  torch::Tensor forward(const torch::Tensor& input) override { return layers->forward(input); }
  nn::Sequential layers;
};

struct Transformer : Network {
  Transformer() {
    embedding = register_module("embedding", nn::Linear(5, 8));
    for (int i = 0; i < 2; ++i) {
      layers->push_back(
          nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0.0)));
    }
    register_module("layers", layers);
    last = register_module("last", nn::Linear(8, 3));
  }
  torch::Tensor forward(const torch::Tensor& input) override {
    torch::Tensor x = embedding(input.transpose(0, 1));  // [sequence, batch, 8]
    for (const auto& layer : *layers) x = layer->as<nn::TransformerEncoderLayer>()->forward(x);
    return last(x.mean(0));
  }
  nn::Linear embedding{nullptr}, last{nullptr};
  nn::ModuleList layers;
};

struct Kind {
  std::string name;
  std::function<std::shared_ptr<Network>()> make;
  std::vector<std::int64_t> sample;  // the shape of one sample
  std::string units;                 // children of it are units
};

inline std::vector<Kind> all_kinds() {
  return {{"perceptron", [] { return std::make_shared<Perceptron>(); }, {7}, "blocks"},
          {"convolutions", [] { return std::make_shared<Convolutions>(); }, {1, 6, 6}, "layers"},
          {"transformer", [] { return std::make_shared<Transformer>(); }, {4, 5}, "layers"}};
}

// A network whose values depend on nothing but its kind. Ranks that are threads share torch's generator, so they copy.
inline std::shared_ptr<Network> original(const Kind& kind) {
  torch::manual_seed(7);
  return kind.make();
}
inline void copy_values(const nn::Module& from, nn::Module& to) {
  const torch::NoGradGuard no_grad;
  auto theirs = from.named_parameters();
  for (auto& parameter : to.named_parameters()) parameter.value().copy_(theirs[parameter.key()]);
  auto buffers = from.named_buffers();
  for (auto& buffer : to.named_buffers()) buffer.value().copy_(buffers[buffer.key()]);
}

struct Batch {
  torch::Tensor input;
  torch::Tensor target;
};

// The samples of one step, all ranks' together.
inline Batch batch_of(const Kind& kind, int step, std::int64_t samples) {
  auto numbers = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 + step));
  std::vector<std::int64_t> shape = kind.sample;
  shape.insert(shape.begin(), samples);
  const torch::Tensor input = torch::randn(shape, numbers);
  return {input, torch::randint(0, 3, {samples}, numbers, torch::kLong)};
}
inline Batch part(const Batch& batch, int rank, int ranks) {
  const auto at = static_cast<std::size_t>(rank);
  return {batch.input.chunk(ranks)[at], batch.target.chunk(ranks)[at]};
}

using Parameters = std::vector<torch::Tensor>;
// An optimizer of tessera's, and torch's own.
struct Optimizers {
  std::function<std::unique_ptr<tessera::Optimizer>(float clip_norm)> sharded = [](float clip_norm) {
    return std::unique_ptr<tessera::Optimizer>(
        tessera::AdamW{.learning_rate = 0.01f, .weight_decay = 0.1f, .clip_norm = clip_norm});
  };
  std::function<std::unique_ptr<torch::optim::Optimizer>(Parameters)> plain =
      [](Parameters all) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::AdamW>(std::move(all), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  };
};

struct Run {
  Kind kind;
  int ranks = 1;
  int steps = 5;
  std::int64_t samples = 12;  // of a micro-batch, all ranks' together
  float clip_norm = 0.0f;
  tessera::FullyShardOptions options = {};
  tessera::DeviceChoice device = tessera::DeviceChoice::cpu;
  Optimizers optimizers = {};
};

struct Result {
  std::vector<float> losses;  // of each step, the mean over ranks and micro-batches
  std::vector<std::vector<float>> weights;
  friend bool operator==(const Result&, const Result&) = default;
};

inline Result train(const Run& run) {
  const auto values = original(run.kind);
  Result result;
  tessera::launch({.ranks = run.ranks, .device = run.device}, [&](tessera::World& world) {
    const auto net = run.kind.make();
    copy_values(*values, *net);
    tessera::torch::FullyShard model(world, net, {.units = tessera::torch::children_of(run.kind.units)}, run.options);
    model.finalize(run.optimizers.sharded(run.clip_norm));
    const torch::Device device = net->parameters().front().device();
    const auto micro_batches = static_cast<int>(run.options.micro_batches);
    std::vector<float> losses;
    for (int step = 0; step < run.steps; ++step) {
      float sum = 0.0f;
      for (int micro = 0; micro < micro_batches; ++micro) {
        const Batch batch =
            part(batch_of(run.kind, step * micro_batches + micro, run.samples), world.rank(), run.ranks);
        const auto type =
            model.sharded().plan().precision(0).parameter == tessera::DType::bf16 ? torch::kBFloat16 : torch::kFloat;
        const auto loss = torch::cross_entropy_loss(model.forward(batch.input.to(device, type)).to(torch::kFloat),
                                                    batch.target.to(device));
        model.backward(loss);
        sum += world.average(loss.item<float>(), "loss");
      }
      model.update();
      losses.push_back(sum / static_cast<float>(micro_batches));
    }
    std::vector<std::vector<float>> weights;
    for (std::size_t u = 0; u < model.sharded().unit_count(); ++u) {
      for (const tessera::Parameter* parameter : model.sharded().unit(u).parameters()) {
        weights.push_back(model.sharded().whole(*parameter));
      }
    }
    if (world.rank() == 0) result = {losses, weights};
  });
  return result;
}

// Data-parallel training means this in torch alone: a replica for each rank, the mean of their gradients, one
// optimizer.
inline std::vector<float> plain_losses(const Run& run) {
  const auto values = original(run.kind);
  std::vector<std::shared_ptr<Network>> replicas;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  for (int rank = 0; rank < run.ranks; ++rank) {
    replicas.push_back(run.kind.make());
    copy_values(*values, *replicas.back());
    optimizers.push_back(run.optimizers.plain(replicas.back()->parameters()));
  }
  const auto micro_batches = static_cast<int>(run.options.micro_batches);
  const auto parts = static_cast<float>(run.ranks * micro_batches);
  std::vector<float> losses;
  for (int step = 0; step < run.steps; ++step) {
    float sum = 0.0f;
    for (auto& replica : replicas) replica->zero_grad();
    for (int micro = 0; micro < micro_batches; ++micro) {
      for (int rank = 0; rank < run.ranks; ++rank) {
        const Batch batch = part(batch_of(run.kind, step * micro_batches + micro, run.samples), rank, run.ranks);
        const auto loss =
            torch::cross_entropy_loss(replicas[static_cast<std::size_t>(rank)]->forward(batch.input), batch.target);
        (loss / parts).backward();
        sum += loss.item<float>();
      }
    }
    losses.push_back(sum / parts);
    for (std::size_t p = 0; p < replicas[0]->parameters().size(); ++p) {
      torch::Tensor mean = replicas[0]->parameters()[p].grad().clone();
      for (std::size_t r = 1; r < replicas.size(); ++r) mean += replicas[r]->parameters()[p].grad();
      for (auto& replica : replicas) replica->parameters()[p].grad().copy_(mean);
    }
    for (std::size_t r = 0; r < replicas.size(); ++r) {
      if (run.clip_norm > 0.0f) nn::utils::clip_grad_norm_(replicas[r]->parameters(), run.clip_norm);
      optimizers[r]->step();
    }
  }
  return losses;
}

inline std::vector<float> floats(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().to(torch::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

// A step of SGD on two ranks; every rank computes with the same input.
template <typename Net, typename Body>
void train_step(const std::shared_ptr<Net>& values, tessera::Strategy strategy, tessera::torch::ModuleOptions units,
                Body body, bool learn = false) {
  tessera::launch({.ranks = 2}, [&](tessera::World& world) {
    const auto net = std::make_shared<Net>();
    copy_values(*values, *net);
    tessera::torch::FullyShard model(world, net, units, {.strategy = strategy});
    const torch::Tensor input = torch::linspace(-1, 1, 6).view({2, 3});
    if (learn) model.learn([&] { net->forward(input); });
    model.finalize(tessera::Sgd{.learning_rate = 0.1f});
    model.backward(model.forward(input).square().sum());
    model.update();
    body(model, *net);
  });
}

// The same step in torch alone.
template <typename Net>
void plain_step(Net& net) {
  net.forward(torch::linspace(-1, 1, 6).view({2, 3})).square().sum().backward();
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net.parameters()) {
    if (!parameter.grad().defined()) continue;
    parameter -= 0.1 * parameter.grad();
    parameter.mutable_grad() = torch::Tensor();  // one with two names comes twice
  }
}

inline void check_close(const std::vector<float>& values, [[maybe_unused]] const std::vector<float>& expected) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == doctest::Approx(expected[i]).epsilon(1e-5));
}

// The sharded module has the weights that the same step in torch alone makes of `values`, with `plain` as its module.
template <typename Model, typename Net>
void check_as_plain_step(Model& model, const Net& values, Net& plain) {
  copy_values(values, plain);
  plain_step(plain);
  for (const auto& parameter : plain.named_parameters()) {
    CAPTURE(parameter.key());
    check_close(model.sharded().whole(model.parameter(parameter.key())), floats(parameter.value()));
  }
}

}  // namespace networks
