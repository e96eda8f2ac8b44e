// Programs other than the chain: a unit in two windows, recomputation, no evaluation.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "../windows.hpp"
#include "tessera/base/error.hpp"
#include "toy_model.hpp"

namespace program_test {

using namespace tessera;
using plan::Program;
using plan::WindowKind;
using toy::Values;

// One layer used twice in a row (its input and output have the same width), between nothing else: weights tied over two
// windows.
struct TiedResult {
  Values weights;
  Values middle;
  double norm;
};

TiedResult train_tied(int ranks, FullyShardOptions options, int steps) {
  TiedResult result{};
  toy::Weights weights;
  options.program = tests::program("f0 f1 f0 b0 b1 b0");
  launch({.ranks = ranks}, [&](World& world) {
    Parameter shared({131}, Initial::uniform(-1, 1));
    Parameter middle({17}, Initial::uniform(-1, 1));
    FullyShard model(world, options);
    const NamedParameter tied_parameters[] = {{"weight", &shared}};
    const NamedParameter middle_parameters[] = {{"weight", &middle}};
    Unit& tied = model.add_unit("tied", tied_parameters);
    Unit& between = model.add_unit("middle", middle_parameters);
    model.finalize(AdamW{.learning_rate = 0.05f});
    const auto nothing = [](Window&) {};
    // The loss is a sum of a[i] * w[i] over both uses: the gradients are 1 + rank and then 10 * (1 + rank).
    const auto gradient_of = [&](const Parameter& parameter, float value) {
      return [&parameter, value](Window& window) {
        window.stream().submit([g = window.gradient(parameter), value] {
          for (std::size_t i = 0; i < g.size(); ++i) g[i] = value * static_cast<float>(i % 5);
        });
      };
    };
    for (int step = 0; step < steps; ++step) {
      for (std::size_t micro = 0; micro < options.micro_batches; ++micro) {
        const float mine = static_cast<float>(world.rank() + 1);
        model.within(tied, WindowKind::forward, nothing);
        model.within(between, WindowKind::forward, nothing);
        model.within(tied, WindowKind::forward, nothing);
        model.within(tied, WindowKind::backward, gradient_of(shared, mine));
        model.within(between, WindowKind::backward, gradient_of(middle, 1.0f));
        model.within(tied, WindowKind::backward, gradient_of(shared, 10.0f * mine));
      }
      model.update();
    }
    if (world.rank() == 0) result.norm = model.last_step().gradient_norm;
    toy::collect_weights(model, weights);
  });
  result.weights = weights["tied.weight"];
  result.middle = weights["middle.weight"];
  return result;
}

TEST_CASE("gradients_of_a_unit_in_two_windows_add_up_and_are_reduced_once") {
  for (const int ranks : {1, 2, 3}) {
    double squares = 0.0;
    const double average = (ranks + 1) / 2.0;
    for (std::size_t i = 0; i < 131; ++i) squares += std::pow(11.0 * average * double(i % 5), 2);
    for (std::size_t i = 0; i < 17; ++i) squares += std::pow(double(i % 5), 2);
    for (const Strategy strategy : flat_strategies) {
      for (const std::size_t micro_batches : {1, 3}) {
        for (const auto mode : {AccumulationMode::reduced, AccumulationMode::local}) {
          FullyShardOptions options{.strategy = strategy,
                                    .micro_batches = micro_batches,
                                    .accumulation = mode,
                                    .diagnostics = {.poison = true}};
          CHECK(train_tied(ranks, options, 1).norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));
        }
      }
    }
  }
}

// With a cap of 592 bytes the two units share a bucket where both add up on the rank, in mode `local`; else they are
// reduced apart.
TEST_CASE("tied_weights_are_bitwise_equal_between_strategies_whatever_is_reduced_together") {
  for (const int ranks : {1, 2, 3, 7}) {
    for (const std::size_t micro_batches : {1, 3}) {
      for (const auto mode : {AccumulationMode::reduced, AccumulationMode::local}) {
        std::optional<TiedResult> reference;
        for (const Strategy strategy : flat_strategies) {
          for (const auto& [cap, prefetch] : {std::pair{0u, 0u}, {591u, 1u}, {592u, 2u}}) {
            FullyShardOptions options{.strategy = strategy,
                                      .micro_batches = micro_batches,
                                      .accumulation = mode,
                                      .prefetch = prefetch,
                                      .bucket_cap = Bytes(cap),
                                      .diagnostics = {.poison = true}};
            const TiedResult result = train_tied(ranks, options, 3);
            if (!reference) reference = result;
            CHECK(result.norm == reference->norm);
            CHECK(toy::same_bits(result.weights, reference->weights));
            CHECK(toy::same_bits(result.middle, reference->middle));
          }
        }
      }
    }
  }
}

TEST_CASE("recomputation_windows_see_the_same_parameters_as_the_forward_pass") {
  FullyShardOptions options{
      .prefetch = 0, .program = tests::program("f0 f1 b1 r0 b0"), .diagnostics = {.poison = true}};
  launch({.ranks = 3}, [&](World& world) {
    toy::Layer<float> first(5, 7, 2), second(7, 3, 2);
    toy::Model model(world, options, AdamW{}, first, second);
    const Values x = toy::sample(10, 0, 0, world.rank(), 0);
    Values dy(6, 1.0f);
    for (int step = 0; step < 3; ++step) {
      model.forward(first, x);
      const Values before = first.y;
      model.forward(second, first.y);
      model.backward(second, dy);
      std::fill(first.y.begin(), first.y.end(), -7.0f);
      model.recompute(first, x);
      CHECK(toy::same_bits(first.y, before));
      model.backward(first, second.dx);
      model.update();
    }
    CHECK_THROWS_WITH_AS(model.evaluate(first, x), doctest::Contains("declares no evaluation"), UsageError);
  });
}

}  // namespace program_test
