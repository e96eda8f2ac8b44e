// Shardings of the user's own: every combination of extents that a rank can update from is a sound plan, and those of
// the strategies are the strategies' plans.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "checks.hpp"
#include "errors.hpp"
#include "matrix.hpp"
#include "tessera/plan/draw.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::sharding_test {

constexpr AxisSet ways[] = {{}, inside_replicas, everywhere};

bool may_be(const Sharding& sharding) {
  return sharding.optimizer.contains(sharding.parameters) && sharding.optimizer.contains(sharding.gradients);
}

std::vector<Sharding> all_shardings() {
  std::vector<Sharding> result;
  for (const AxisSet parameters : ways) {
    for (const AxisSet gradients : ways) {
      for (const AxisSet optimizer : ways) result.push_back({parameters, gradients, optimizer});
    }
  }
  return result;
}

PlanOptions options_of(const Sharding& sharding, const MeshOfRanks& mesh) {
  PlanOptions options{.sharding = sharding, .ranks = mesh.replicas * mesh.ranks_of_replica, .replicas = mesh.replicas};
  return options;
}

std::size_t elements(const Plan& plan, AxisSet over) {
  std::size_t total = 0;
  for (const UnitLayout& layout : plan.layouts) total += layout.elements(over, Part::trained);
  return total;
}

TEST_CASE("every_sharding_that_a_rank_can_update_from_is_sound_and_keeps_what_it_says") {
  std::size_t sound = 0;
  for (const MeshOfRanks& mesh : {MeshOfRanks{1, 3}, MeshOfRanks{2, 2}, MeshOfRanks{3, 2}, MeshOfRanks{4, 1}}) {
    for (const Sharding& sharding : all_shardings()) {
      if (!may_be(sharding)) continue;
      for (const Precision& precision : {fp32_precision, bf16_mixed, in_bf16_throughout}) {
        for (const std::size_t micro_batches : {1u, 3u}) {
          PlanOptions options = options_of(sharding, mesh);
          options.precision = precision;
          options.micro_batches = micro_batches;
          const Plan plan = compile(chain_model(4), options);
          INFO(mesh.replicas << " x " << mesh.ranks_of_replica << ": " << to_string(sharding));
          check_sound(verify(plan));
          Bytes of_states;
          for (const UnitBuffers& buffers : plan.unit_buffers) of_states += plan.buffers[buffers.states[0].buffer].size;
          CHECK(of_states == size_of(DType::fp32) * elements(plan, plan.sharding().optimizer));
          ++sound;
        }
      }
    }
  }
  CHECK(sound == 4 * 14 * 6);
}

// But for the options' own line.
std::string operations_of(const PlanOptions& options) {
  const std::string text = canonical_text(compile(chain_model(4), options));
  return text.substr(text.find('\n', text.find("options ")));
}

TEST_CASE("a_strategy_s_sharding_said_in_full_is_the_strategy_s_plan") {
  for (const Strategy strategy : all_strategies) {
    if (strategy == Strategy::zero1) continue;  // zero2's, but for where sums of micro-batches stand
    const MeshOfRanks mesh{2, 2};
    PlanOptions options = options_of(strategy.sharding, mesh);
    options.micro_batches = 2;
    const std::string said = operations_of(options);
    options.sharding.reset();
    options.strategy = strategy;
    INFO(to_string(strategy));
    CHECK(said == operations_of(options));
  }
}

TEST_CASE("a_rank_that_would_update_what_it_does_not_keep_is_refused") {
  const std::string why =
      ": a rank updates what it keeps of the optimizer's states, so it must keep as much of parameters and gradients, "
      "or more: shard them over no other axes";
  for (const Sharding& sharding : all_shardings()) {
    if (may_be(sharding)) continue;
    const PlanOptions options = options_of(sharding, {2, 2});
    CHECK(refusal(chain_model(2), options) == "sharding is " + to_string(sharding) + why);
  }
}

}  // namespace tessera::plan::sharding_test
