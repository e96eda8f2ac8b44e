// Units with optimizers of their own (UnitOptions::optimizer) inside one program: against a plain loop in double
// precision, and bit for bit between strategies.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "plain_layer.hpp"
#include "tessera/base/error.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/plan/verify.hpp"
#include "toy_model.hpp"

namespace unit_optimizer_test {

using tessera::AdamW;
using tessera::FullyShard;
using tessera::FullyShardOptions;
using tessera::Sgd;
using tessera::Strategy;
using tessera::UnitOptions;
using toy::contains;
using toy::failure_of;
using toy::Values;

constexpr std::size_t rows = 3;
constexpr std::array<std::size_t, 4> widths = {5, 13, 7, 3};
constexpr int steps = 5;
constexpr float rate = 0.02f, own_rate = 0.05f, momentum = 0.9f;

using Weights = std::map<std::string, Values>;

// The factor of the first steps is as the optimizers say, and then a half of it.
float factor_of(int step) { return step < 2 ? 1.0f : 0.5f; }

// AdamW trains unit 0, SGD units 1, and 2 an AdamW of other decays than those that are counted.
Weights train(int ranks, const FullyShardOptions& options, bool sgd_program = false) {
  Weights weights;
  std::mutex mutex;
  tessera::launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](tessera::World& world) {
    toy::Layer<float> first(widths[0], widths[1], rows), second(widths[1], widths[2], rows),
        third(widths[2], widths[3], rows);
    FullyShard model(world, options);
    const AdamW adamw{.learning_rate = rate, .weight_decay = 0.0f};
    const Sgd sgd{.learning_rate = own_rate, .momentum = momentum};
    const AdamW other{.learning_rate = rate, .beta1 = 0.8f, .weight_decay = 0.0f};
    // The same rules for the same units, whoever's they are.
    model.add(first, sgd_program ? UnitOptions{.name = "layer0", .optimizer = adamw} : UnitOptions{.name = "layer0"});
    model.add(second, sgd_program ? UnitOptions{.name = "layer1"} : UnitOptions{.name = "layer1", .optimizer = sgd});
    model.add(third, {.name = "layer2", .optimizer = other});
    model.finalize(sgd_program ? std::unique_ptr<tessera::Optimizer>(sgd) : adamw);
    CHECK(model.plan().unit_buffers[0].states.size() == 2);
    CHECK(model.plan().unit_buffers[1].states.size() == 1);
    CHECK(model.plan().unit_buffers[2].states.size() == 2);
    Values x, dy;
    for (int step = 0; step < steps; ++step) {
      x = toy::sample(rows * widths[0], step, 0, world.rank(), 0);
      const Values& y = model.forward(third, model.forward(second, model.forward(first, x)));
      model.stream().submit([&dy, &y] {
        dy = y;
        for (float& each : dy) each -= 0.5f;
      });
      model.backward(first, model.backward(second, model.backward(third, dy)));
      const float of_program = sgd_program ? own_rate : rate;
      factor_of(step) == 1.0f ? model.update() : model.update(of_program * factor_of(step));
      model.synchronize();
    }
    // The states have the optimizers' names.
    CHECK_NOTHROW(model.pieces(model.unit(1), "velocity"));
    CHECK_THROWS_AS(model.pieces(model.unit(1), "v"), tessera::UsageError);
    toy::collect_weights(model, weights, mutex);
  });
  return weights;
}

plain::Rule adamw_of(double of_rate, double beta1, int step) {
  return [=](double& weight, double gradient, double& first, double& second) {
    first = beta1 * first + (1.0 - beta1) * gradient;
    second = 0.999 * second + 0.001 * gradient * gradient;
    const double mean = first / (1.0 - std::pow(beta1, step));
    weight -= of_rate * mean / (std::sqrt(second / (1.0 - std::pow(0.999, step))) + 1e-8);
  };
}

plain::Chain train_plainly(int ranks) {
  plain::Chain net("layer", widths);
  std::vector<plain::Layer>& layers = net.layers;
  for (int step = 0; step < steps; ++step) {
    net.clear();
    for (int rank = 0; rank < ranks; ++rank) {
      plain::Numbers dy = net.forward(plain::numbers(toy::sample(rows * widths[0], step, 0, rank, 0)));
      for (double& each : dy) each -= 0.5;
      net.backward(dy);
    }
    const double factor = double(factor_of(step));
    layers[0].update(ranks, adamw_of(double(rate) * factor, double(0.9f), step + 1));
    layers[1].update(ranks, plain::sgd(double(own_rate) * factor, double(momentum)));
    layers[2].update(ranks, adamw_of(double(rate) * factor, double(0.8f), step + 1));
  }
  return net;
}

TEST_CASE("units_with_optimizers_of_their_own_train_as_in_a_plain_loop") {
  for (const bool sgd_program : {false, true}) {
    for (const int ranks : {1, 2, 3, 4}) {
      INFO(ranks << " ranks, " << (sgd_program ? "a program of SGD" : "one of AdamW"));
      plain::check_near(train(ranks, {}, sgd_program), train_plainly(ranks));
    }
  }
}

TEST_CASE("units_with_optimizers_of_their_own_are_bitwise_equal_between_strategies") {
  struct Mesh {
    int ranks;
    std::size_t replicas;
  };
  for (const Mesh mesh : {Mesh{1, 1}, Mesh{2, 1}, Mesh{3, 1}, Mesh{4, 2}}) {
    const Weights reference = train(mesh.ranks, {.strategy = Strategy::ddp, .replicas = mesh.replicas});
    for (const Strategy strategy : tessera::all_strategies) {
      FullyShardOptions options{.strategy = strategy, .replicas = mesh.replicas};
      options.diagnostics = {.poison = true, .touch = true, .queue_compute = true};
      const Weights weights = train(mesh.ranks, options);
      for (const auto& entry : reference) {
        INFO(entry.first << ", " << to_string(strategy) << " on " << mesh.ranks << " ranks");
        CHECK(toy::same_bits(weights.at(entry.first), entry.second));
      }
    }
  }
}

std::string failure_with(const UnitOptions& unit, const AdamW& program, FullyShardOptions options = {}) {
  return failure_of(2, [&](tessera::World& world) {
    toy::Layer<float> layer(2, 2, rows);
    FullyShard model(world, options);
    UnitOptions mine = unit;
    if (mine.optimizer == nullptr) mine.optimizer = Sgd{.learning_rate = 0.5f + float(world.rank())};
    model.add(layer, mine);
    model.finalize(program);
  });
}

TEST_CASE("optimizers_of_units_that_do_not_fit_their_programs_are_refused") {
  CHECK(contains(failure_with({.name = "a", .optimizer = Sgd{.clip_norm = 2.0f}}, {.clip_norm = 1.0f}),
                 "unit a: its optimizer's clip_norm is 2"));
  CHECK(failure_with({.name = "a", .optimizer = Sgd{.clip_norm = 1.0f}}, {.clip_norm = 1.0f}) == "");
  CHECK(contains(failure_with({.name = "a", .optimizer = Sgd{}}, {.learning_rate = 0.0f}),
                 "unit a has an optimizer of its own, whose learning rate follows the step's"));
  CHECK(contains(failure_with({.name = "a", .optimizer = Sgd{}}, {}, {.replicas = 2, .outer = {.every = 2}}),
                 "unit a has an optimizer of its own, which does not go with outer steps"));
  CHECK(contains(failure_with({.name = "a"}, {}), "learning_rate of unit a"));  // ranks differ
}

}  // namespace unit_optimizer_test
