// Optimizers that see tensors whole: the same bits for every strategy, mesh and way of wrapping, and a plain loop's.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "../extent.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/verify.hpp"
#include "toy_model.hpp"
#include "whole_optimizers.hpp"

namespace whole_tensors_test {

using namespace tessera;
using toy::Result;
using toy::Run;
using whole_optimizers::Lamb;
using whole_optimizers::Running;

template <typename Which>
std::unique_ptr<Optimizer> make(float clip) {
  return std::make_unique<Which>(clip);
}

std::vector<toy::Mesh> meshes() {
  if (tests::sanitized) return {{3, 1}, {4, 2}};
  return {{1, 1}, {2, 1}, {3, 1}, {5, 1}, {4, 2}, {6, 3}};
}

Run run_of(int ranks, const FullyShardOptions& options, std::unique_ptr<Optimizer> (*optimizer)(float clip)) {
  Run run{.options = options, .ranks = ranks, .optimizer = optimizer};
  return run;
}

template <typename T, typename Which>
void check_strategies(const Precision& precision) {
  for (const toy::Mesh& mesh : meshes()) {
    for (const std::size_t micro_batches : {1u, 3u}) {
      FullyShardOptions options{.strategy = Strategy::ddp,
                                .replicas = mesh.replicas,
                                .precision = precision,
                                .micro_batches = micro_batches,
                                .accumulation = AccumulationMode::reduced};
      Run first = run_of(mesh.ranks, options, make<Which>);
      if (precision.gradient == DType::fp16) first.overflows = {1};
      const Result expected = toy::train<T>(first);
      for (const Strategy strategy :
           {Strategy::zero1, Strategy::zero2, Strategy::fsdp, Strategy::hsdp, Strategy::hfsdp}) {
        Run run = first;
        run.options.strategy = strategy;
        run.options.diagnostics.poison = true;
        CHECK_MESSAGE(toy::same_bits(toy::train<T>(run), expected), toy::describe(run));
      }
    }
  }
}

TEST_CASE("every_strategy_has_the_same_bits_with_tensors_seen_whole") {
  check_strategies<float, Lamb>(fp32_precision);
  check_strategies<float, Running>(fp32_precision);
  check_strategies<bf16, Running>(bf16_mixed);
  check_strategies<fp16, Lamb>(fp16_mixed);
}

TEST_CASE("states_of_the_host_go_with_tensors_seen_whole") {
  FullyShardOptions options{.strategy = Strategy::fsdp};
  Run run = run_of(3, options, make<Lamb>);
  const Result expected = toy::train<float>(run);
  run.offloaded = {0, 2};
  CHECK(toy::same_bits(toy::train<float>(run), expected));
}

// Replicas that train by themselves share tensors among their own ranks.
TEST_CASE("outer_steps_go_with_tensors_seen_whole") {
  FullyShardOptions options{.strategy = Strategy::ddp, .replicas = 2, .outer = {.every = 2}};
  Run run = run_of(4, options, make<Running>);
  const Result expected = toy::train<float>(run);
  for (const Strategy strategy : {Strategy::zero1, Strategy::zero2, Strategy::hsdp}) {
    run.options.strategy = strategy;
    CHECK_MESSAGE(toy::same_bits(toy::train<float>(run), expected), toy::describe(run));
  }
}

TEST_CASE("units_may_have_other_optimizers_beside_those_that_see_tensors_whole") {
  const auto train = [](int ranks, Strategy strategy) {
    toy::Weights whole;
    launch({.ranks = ranks, .timeout = std::chrono::seconds(20)}, [&](World& world) {
      toy::Layer<float> first(5, 13, 3), second(13, 11, 3), third(11, 7, 3), fourth(7, 7, 3);
      FullyShard model(world, {.strategy = strategy});
      const AdamW adamw{.learning_rate = 0.01f};
      model.add(first, {.name = "first", .optimizer = std::make_shared<Lamb>(0.0f)});
      model.add(second, {.name = "second", .optimizer = adamw});
      model.add(third, {.name = "third"});
      model.add(fourth, {.name = "fourth", .optimizer = std::make_shared<Lamb>(0.0f)});
      model.finalize(std::make_unique<Running>(0.5f));
      CHECK(model.plan().whole_groups.size() == 2);
      CHECK(plan::verify(model.plan()).ok());
      toy::Values dy(3 * 7);
      for (int step = 0; step < 4; ++step) {
        const toy::Values x = toy::sample(3 * 5, step, 0, 0, 0);
        const toy::Values& y =
            model.forward(fourth, model.forward(third, model.forward(second, model.forward(first, x))));
        model.stream().submit([&] {
          for (std::size_t i = 0; i < dy.size(); ++i) dy[i] = y[i] - 0.25f;
        });
        model.backward(first, model.backward(second, model.backward(third, model.backward(fourth, dy))));
        model.update();
        model.synchronize();
      }
      toy::collect_weights(model, whole);
    });
    return whole;
  };
  const auto one = train(3, Strategy::ddp);
  for (const Strategy strategy : {Strategy::zero2, Strategy::fsdp}) {
    CHECK(toy::same_bits(train(3, strategy), one));
  }
}

// Tensors of one group are worked on by the optimizers of their own units: with the same one for both, the second
// unit's weights are others.
TEST_CASE("tensors_of_one_group_are_worked_on_by_the_optimizers_of_their_units") {
  const auto second_weight = [](float decay_of_first, float decay_of_second) {
    toy::Weights whole;
    launch({.ranks = 3, .timeout = std::chrono::seconds(20)}, [&](World& world) {
      toy::Layer<float> first(5, 13, 3), second(13, 7, 3);
      FullyShard model(world, {});
      model.add(first, {.name = "first", .optimizer = std::make_shared<Running>(0.0f, decay_of_first)});
      model.add(second, {.name = "second"});
      model.finalize(std::make_unique<Running>(0.0f, decay_of_second));
      CHECK(model.plan().whole_groups.size() == 1);
      const toy::Values x = toy::sample(3 * 5, 0, 0, 0, 0);
      toy::Values dy(3 * 7);
      const toy::Values& y = model.forward(second, model.forward(first, x));
      model.stream().submit([&] {
        for (std::size_t i = 0; i < dy.size(); ++i) dy[i] = y[i] - 0.25f;
      });
      model.backward(first, model.backward(second, dy));
      model.update();
      model.synchronize();
      toy::collect_weights(model, whole);
    });
    return whole.at("second.weight");
  };
  CHECK(toy::same_bits(second_weight(0.5f, 0.9f), second_weight(0.9f, 0.9f)));
  CHECK_FALSE(toy::same_bits(second_weight(0.9f, 0.5f), second_weight(0.9f, 0.9f)));
}

}  // namespace whole_tensors_test
