// Optimizer runs cover every element once, with the settings of its parameter's group, wherever shards begin and end.
#include "shard/optimizer_runs.hpp"

#include <doctest/doctest.h>

#include "tessera/optim/adamw.hpp"
#include "tessera/plan/compile.hpp"

namespace {

using namespace tessera;

plan::Plan plan_of(Strategy strategy, std::size_t ranks) {
  plan::CompileInput input;
  input.units = {
      {.name = "u",
       .parameters = {
           {"u.weight", {17, 19}}, {"u.bias", {17}}, {"u.scale", {1}}, {"u.empty", {0}}, {"u.table", {301}}}}};
  input.programs = {plan::Program::chain(1)};
  input.options.strategy = strategy;
  input.options.ranks = ranks;
  input.optimizer_states = {"m", "v"};
  return plan::compile(input);
}

const std::vector<std::int64_t> old(5, 0);

TEST_CASE("patterns_match_as_in_a_shell") {
  CHECK(matches("*.bias", "blocks.3.bias"));
  CHECK(matches("head.*", "head.weight"));
  CHECK(matches("blocks.?.weight", "blocks.3.weight"));
  CHECK(matches("*", ""));
  CHECK(matches("a*b*c", "axxbyyc"));
  CHECK(matches("blocks.[0-3].*", "blocks.3.weight"));
  CHECK_FALSE(matches("blocks.[!0-3].*", "blocks.3.weight"));
  CHECK_FALSE(matches("*.bias", "bias"));
  CHECK_FALSE(matches("head.*", "ahead.weight"));
  CHECK_FALSE(matches("", "a"));
}

TEST_CASE("every_element_is_updated_once_with_its_groups_settings") {
  const std::unique_ptr<Optimizer> optimizer =
      AdamW{.weight_decay = 0.1f,
            .groups = {{.patterns = {"*.bias", "*.scale"}, .weight_decay = 0.0f},
                       {.patterns = {"*.scale", "*.table"}, .learning_rate_scale = 0.5f, .weight_decay = 0.2f}}};
  for (const Strategy strategy : flat_strategies) {
    for (const std::size_t ranks : {1, 2, 3, 5, 7, 13}) {
      const plan::Plan plan = plan_of(strategy, ranks);
      const plan::UnitLayout& layout = plan.layouts[0];
      for (std::size_t p = 0; p < layout.parameters(); ++p) {
        const float decay = p == 0 ? 0.1f : p == 4 ? 0.2f : 0.0f;
        const float scale = p == 4 ? 0.5f : 1.0f;
        for (std::size_t element = 0; element < layout.elements(p); ++element) {
          const std::size_t flat = layout.offset(p) + element;
          int updates = 0;
          for (std::size_t rank = 0; rank < (strategy == Strategy::ddp ? 1 : ranks); ++rank) {
            const std::size_t base = strategy == Strategy::ddp ? 0 : layout.shard_begin(plan::Part::trained, rank);
            for (const OptimizerRun& run : optimizer_runs(plan, 0, rank, *optimizer, old)) {
              if (flat < base + run.first || flat >= base + run.first + run.count) continue;
              ++updates;
              CHECK(run.group.weight_decay == decay);
              CHECK(run.learning_rate_scale == scale);
            }
          }
          CHECK(updates == 1);
        }
      }
    }
  }
}

// A group that only scales the learning rate keeps the decay.
TEST_CASE("what_a_group_does_not_set_it_inherits") {
  const std::unique_ptr<Optimizer> optimizer =
      AdamW{.beta1 = 0.8f,
            .weight_decay = 0.1f,
            .groups = {{.patterns = {"*.bias"}, .learning_rate_scale = 0.5f},
                       {.patterns = {"*.table"}, .beta1 = 0.7f, .beta2 = 0.95f, .epsilon = 1e-6f}}};
  const std::vector<OptimizerRun> runs = optimizer_runs(plan_of(Strategy::ddp, 1), 0, 0, *optimizer, old);
  REQUIRE(runs.size() == 4);  // weight, bias, scale, table
  for (const OptimizerRun& run : runs) CHECK(run.group.weight_decay == 0.1f);
  CHECK(runs[1].learning_rate_scale == 0.5f);
  CHECK_FALSE(runs[1].group.beta1.has_value());
  CHECK(runs[3].learning_rate_scale == 1.0f);
  CHECK(runs[3].group.beta1 == 0.7f);
  CHECK(runs[3].group.beta2 == 0.95f);
  CHECK(runs[3].group.epsilon == 1e-6f);
}

TEST_CASE("without_groups_a_shard_is_one_run") {
  const std::unique_ptr<Optimizer> optimizer = AdamW{};
  const plan::Plan plan = plan_of(Strategy::ddp, 3);
  CHECK(optimizer_runs(plan, 0, 0, *optimizer, old).size() == 1);
  std::vector<std::int64_t> young = old;
  young[1] = 40;  // the bias was thawed then
  const std::vector<OptimizerRun> runs = optimizer_runs(plan, 0, 0, *optimizer, young);
  REQUIRE(runs.size() == 3);
  CHECK(runs[0].group.begun == 0);
  CHECK(runs[1].group.begun == 40);
}

}  // namespace
