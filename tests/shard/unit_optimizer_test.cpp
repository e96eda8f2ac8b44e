// Units with optimizers of their own (UnitOptions::optimizer) inside one program: against a plain loop in double
// precision, and bit for bit between strategies.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plain_layer.hpp"
#include "tessera/base/error.hpp"
#include "tessera/optim/sgd.hpp"
#include "tessera/plan/verify.hpp"
#include "toy_model.hpp"

namespace unit_optimizer_test {

using namespace tessera;
using toy::contains;
using toy::failure_of;
using toy::Values;

constexpr std::size_t rows = 3;
constexpr std::array<std::size_t, 4> widths = {5, 13, 7, 3};
constexpr int steps = 5;
constexpr float rate = 0.02f, own_rate = 0.05f, momentum = 0.9f;

using toy::Weights;

// The factor of the first steps is as the optimizers say, and then a half of it.
float factor_of(int step) { return step < 2 ? 1.0f : 0.5f; }

// AdamW trains unit 0, SGD units 1, and 2 an AdamW of other decays than those that are counted.
Weights train(int ranks, const FullyShardOptions& options, bool sgd_program = false) {
  Weights weights;
  launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
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
    model.finalize(sgd_program ? std::unique_ptr<Optimizer>(sgd) : adamw);
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
    CHECK_THROWS_AS(model.pieces(model.unit(1), "v"), UsageError);
    toy::collect_weights(model, weights);
  });
  return weights;
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
    layers[0].update(ranks, plain::adamw(double(rate) * factor, step + 1));
    layers[1].update(ranks, plain::sgd(double(own_rate) * factor, double(momentum)));
    layers[2].update(ranks, plain::adamw(double(rate) * factor, step + 1, {.beta1 = double(0.8f)}));
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
  for (const toy::Mesh& mesh : {toy::Mesh{1, 1}, {2, 1}, {3, 1}, {4, 2}}) {
    const Weights reference = train(mesh.ranks, {.strategy = Strategy::ddp, .replicas = mesh.replicas});
    for (const Strategy strategy : all_strategies) {
      const FullyShardOptions options{.strategy = strategy,
                                      .replicas = mesh.replicas,
                                      .diagnostics = {.poison = true, .touch = true, .queue_compute = true}};
      INFO(to_string(strategy) << " on " << mesh.ranks << " ranks");
      CHECK(toy::same_bits(train(mesh.ranks, options), reference));
    }
  }
}

std::string failure_with(const UnitOptions& unit, const AdamW& program, FullyShardOptions options = {}) {
  return failure_of(2, [&](World& world) {
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
