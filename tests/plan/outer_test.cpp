// Plans with outer steps: replicas train by themselves, and every so often average their weights.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checks.hpp"
#include "errors.hpp"
#include "matrix.hpp"
#include "plan/fragments.hpp"
#include "plan_edits.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::outer_test {

constexpr Strategy outer_strategies[] = {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp,
                                         Strategy::hsdp};

PlanOptions options_on(const MeshOfRanks& mesh, Strategy strategy, std::size_t fragments = 1, std::size_t every = 4) {
  return {.strategy = strategy,
          .ranks = mesh.replicas * mesh.ranks_of_replica,
          .replicas = mesh.replicas,
          .outer_every = every,
          .outer_fragments = fragments};
}

void for_each_options(const std::function<void(const PlanOptions&)>& body) {
  for (const MeshOfRanks& mesh : all_meshes) {
    if (mesh.replicas == 1) continue;
    for (const Strategy strategy : outer_strategies) {
      for (const Precision& precision : {fp32_precision, bf16_mixed}) {
        for (const std::size_t fragments : {1u, 2u, 3u}) {
          PlanOptions options = options_on(mesh, strategy, fragments);
          options.precision = precision;
          for_each_gathering(options, [&](const PlanOptions& gathering) {
            for_each_accumulation(gathering,
                                  [&](const PlanOptions& accumulating) { for_each_bucket_cap(accumulating, body); });
          });
        }
      }
    }
  }
}

Plan sample(std::size_t fragments = 1) {
  return compile(chain_model(3), options_on({2, 2}, Strategy::zero2, fragments));
}

TEST_CASE("verify_accepts_every_plan_with_outer_steps") {
  std::size_t index = 0;
  std::size_t accepted = 0;
  std::vector<Model> models = all_models();
  models.push_back(varied_model());
  for (const Model& model : models) {
    for_each_options([&](const PlanOptions& options) {
      if (index++ % 307 != 0 || options.outer_fragments > 1 + index % model.units.size()) return;
      Plan plan;
      try {
        plan = compile(model, options);
      } catch (const UsageError&) {
        return;  // more fragments than units that train
      }
      INFO(model.name << ", " << describe(options));
      check_sound(verify(plan));
      ++accepted;
    });
  }
  MESSAGE(accepted << " plans");
  CHECK(accepted > 150);
}

// ---- when ----

std::string turns(std::size_t every, std::size_t fragments, std::size_t steps) {
  const Plan plan = compile(chain_model(5), options_on({2, 1}, Strategy::ddp, fragments, every));
  std::string text;
  for (std::size_t step = 1; step <= steps; ++step) {
    const auto segment = plan.outer_after(step);
    text += segment ? fmt::format("{}", plan.segments[*segment].fragment) : ".";
  }
  return text;
}

TEST_CASE("each_fragment_has_its_turn_once_in_every_so_many_steps") {
  CHECK(turns(1, 1, 4) == "0000");
  CHECK(turns(3, 1, 7) == "..0..0.");
  CHECK(turns(4, 2, 9) == ".1.0.1.0.");
  CHECK(turns(5, 2, 11) == ".1..0.1..0.");
  CHECK(turns(3, 3, 6) == "120120");
  CHECK(turns(7, 3, 15) == ".1.2..0.1.2..0.");
}

TEST_CASE("there_is_no_outer_step_unless_it_was_asked_for") {
  const Plan plan = compile(chain_model(3), {.ranks = 4, .replicas = 2});
  for (std::size_t step = 0; step < 5; ++step) CHECK_FALSE(plan.outer_after(step).has_value());
  CHECK_FALSE(plan.find(SegmentKind::outer).has_value());
}

TEST_CASE("fragments_are_runs_of_about_equal_size_and_none_is_empty") {
  for (std::size_t fragments = 1; fragments <= 5; ++fragments) {
    const Plan plan = compile(chain_model(5), options_on({2, 2}, Strategy::hsdp, fragments, 8));
    std::vector<std::size_t> all;
    for (const auto& units : outer_fragments(plan)) {
      CHECK_FALSE(units.empty());
      all.insert(all.end(), units.begin(), units.end());
    }
    CHECK(all == std::vector<std::size_t>{0, 1, 2, 3, 4});
    CHECK(outer_fragments(plan).size() == fragments);
  }
  Model equal = chain_model(6);
  for (std::size_t unit = 0; unit < 6; ++unit) equal.units[unit] = unit_of(fmt::format("u{}", unit), {1000});
  const std::vector<std::vector<std::size_t>> pairs = {{0, 1}, {2, 3}, {4, 5}};
  CHECK(outer_fragments(compile(equal, options_on({2, 2}, Strategy::hsdp, 3))) == pairs);
}

// ---- what ----

TEST_CASE("gradients_stay_inside_a_replica_and_outer_steps_cross") {
  const Plan plan = compile(chain_model(3), options_on({3, 2}, Strategy::zero2));
  for (const Segment& segment : plan.segments) {
    for (const Operation& operation : segment.operations) {
      if (!is_collective(operation.kind)) continue;
      INFO(describe(plan, operation));
      CHECK(operation.group.contains(Axis::replicate) == (segment.kind == SegmentKind::outer));
      if (operation.kind != OperationKind::reduce_scatter) continue;
      CHECK(operation.divisor == (segment.kind == SegmentKind::outer ? 3u : 2u));
    }
  }
}

// 8/N bytes a parameter, and two slots for means.
TEST_CASE("outer_steps_take_two_shards_of_each_unit_and_two_of_the_largest") {
  const Plan plan = sample();
  PlanOptions single = plan.options;
  single.outer_every = 0;
  single.replicas = 1;
  single.ranks = plan.mesh.size(Axis::shard);
  const Plan alone = compile(chain_model(3), single);
  Bytes shards;
  for (const UnitLayout& layout : plan.layouts) shards += Bytes(4) * layout.shard_elements();
  Bytes states;
  for (const UnitLayout& layout : plan.layouts) states += Bytes(8) * layout.elements(Axis::shard, Part::trained);
  CHECK(bytes_in(plan, Category::optimizer) == states + shards * 2);
  CHECK(bytes_in(alone, Category::staging) == Bytes(0));
  CHECK(bytes_in(plan, Category::staging) ==
        Bytes(4) * (plan.layouts[0].shard_elements() + plan.layouts[1].shard_elements()));
  CHECK(memory(plan).live <= memory(plan).peak);
}

// ---- what the verifier says ----

TEST_CASE("weights_that_were_not_averaged_are_an_objection") {
  Plan plan = sample();
  const std::size_t outer = *plan.find(SegmentKind::outer);
  REQUIRE(plan.at({outer, 0}).kind == OperationKind::reduce_scatter);
  erase(plan, {outer, 0});
  CHECK(says(verify(plan), ViolationKind::lost, "outer update u0 (segment outer, #0) uses mean0"));
  CHECK(says(verify(plan), ViolationKind::stale_read, "of mean0, which were not all written since u0 took it"));
}

TEST_CASE("weights_that_were_averaged_and_not_gathered_are_stale") {
  Plan plan = sample();
  const std::size_t outer = *plan.find(SegmentKind::outer);
  const auto& operations = plan.segments[outer].operations;
  const auto gather = std::find_if(operations.begin(), operations.end(), [](const Operation& operation) {
    return operation.kind == OperationKind::all_gather;
  });
  REQUIRE(gather != operations.end());
  erase(plan, {outer, static_cast<std::size_t>(gather - operations.begin())});
  CHECK(says(verify(plan), ViolationKind::stale_read, "forward window u0"));
}

TEST_CASE("a_gradient_summed_over_all_ranks_is_an_objection_where_replicas_train_by_themselves") {
  const Plan plan = sample();
  Plan summed = compile(chain_model(3), {.strategy = Strategy::zero2, .ranks = 4, .replicas = 2});
  summed.options.outer_every = 4;
  CHECK(says(verify(summed), ViolationKind::lost, "which is summed over 4 of 2 ranks"));
  CHECK(verify(plan).ok());
}

TEST_CASE("ranks_with_other_fragments_are_a_mismatch") {
  const Plan one = sample(2);
  Plan other = one;
  for (Segment& segment : other.segments) {
    if (segment.kind == SegmentKind::outer) segment.fragment = 1 - segment.fragment;
  }
  const Verification verification = verify(one, other);
  REQUIRE_FALSE(verification.ok());
  CHECK(verification.violations.front().kind == ViolationKind::mismatch);
}

// ---- what cannot be ----

std::string refusal(const PlanOptions& options) { return refusal(chain_model(3), options); }

TEST_CASE("outer_steps_that_cannot_be_are_refused_with_both_sides") {
  CHECK(refusal({.ranks = 4, .outer_every = 5}) ==
        "outer steps every 5 steps need several replicas, and replicas is 1");
  CHECK(refusal({.strategy = Strategy::hfsdp, .ranks = 4, .replicas = 2, .outer_every = 5}) ==
        "outer steps every 5 steps let replicas differ, and hfsdp divides the optimizer's states among them: use hsdp");
  CHECK(refusal({.ranks = 4, .replicas = 2, .outer_every = 5, .outer_fragments = 4}) ==
        "outer steps in 4 fragments every 5 steps of 3 units that train: choose 1 to 3 fragments");
  CHECK(refusal({.ranks = 4, .replicas = 2, .outer_every = 2, .outer_fragments = 3}) ==
        "outer steps in 3 fragments every 2 steps of 3 units that train: choose 1 to 2 fragments");
  CHECK(refusal({.ranks = 4, .replicas = 2, .outer_every = 2, .outer_fragments = 0}) ==
        "outer steps in 0 fragments every 2 steps of 3 units that train: choose 1 to 2 fragments");
  CHECK(refusal({.ranks = 4, .replicas = 2, .outer_fragments = 2}) ==
        "outer steps in 2 fragments, but outer steps every 0 steps, which are none: set both");
}

}  // namespace tessera::plan::outer_test
