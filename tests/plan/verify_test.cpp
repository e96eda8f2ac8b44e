// verify() names the kind of a violation, and the operations and the buffer.
#include "tessera/plan/verify.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checks.hpp"
#include "errors.hpp"
#include "models.hpp"
#include "mutants.hpp"
#include "plan_edits.hpp"

namespace tessera::plan::verify_test {

Plan sample(std::size_t ranks = 3) { return compile(chain_model(3), {.ranks = ranks}); }

std::size_t find(const Plan& plan, SegmentKind segment, const std::string& description, std::size_t nth = 0) {
  const auto& operations = plan.segments[*plan.find(segment)].operations;
  for (std::size_t o = 0; o < operations.size(); ++o) {
    if (describe(plan, operations[o]) == description && nth-- == 0) return o;
  }
  throw InternalError("no " + description);
}

TEST_CASE("a_sound_plan_has_no_violation_and_was_run_in_more_than_one_state") {
  const Verification verification = verify(sample());
  CHECK(verification.ok());
  CHECK(verification.states > sample().segments.size());
  CHECK(verification.operations > 0);
}

TEST_CASE("backward_windows_may_come_in_any_order") {
  using enum WindowKind;
  std::vector<std::size_t> order = {0, 1, 2};
  do {
    Model model = chain_model(3);
    model.program = program("f0 f1 f2");
    for (const std::size_t unit : order) model.program.micro_batch.push_back({unit, backward});
    for (const Strategy strategy : flat_strategies) {
      for (const std::size_t ranks : {1u, 2u, 3u, 5u}) {
        INFO(order[0] << order[1] << order[2] << " " << to_string(strategy) << " " << ranks << " ranks");
        CHECK(verify(compile(model, {.strategy = strategy, .ranks = ranks})).ok());
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("the_cost_does_not_grow_with_the_world") {
  CHECK(verify(sample(4096)).operations == verify(sample(2)).operations);
}

// Waits are derived with two phases of the plan at a time, and plans verified in two steps: nothing is left for a third
// to break.
TEST_CASE("what_is_sound_in_two_steps_is_sound_in_every_order_of_any_number") {
  for (const Model& model : {chain_model(3), adversarial_model(), chain_of_programs(3, 3)}) {
    for (const Strategy strategy : all_strategies) {
      const bool hybrid = strategy == Strategy::hsdp || strategy == Strategy::hfsdp;
      for (const std::size_t micro_batches : {1u, 2u}) {
        if (micro_batches > 1 && model.further.size() > 1) continue;  // tens of thousands of states
        const PlanOptions options{
            .strategy = strategy, .ranks = 4, .replicas = hybrid ? 2u : 1u, .micro_batches = micro_batches};
        const Plan plan = compile(model, options);
        INFO(model.name << ", " << describe(options));
        CHECK(verify(plan).ok());
        CHECK(verify(plan, Sequences::all).ok());
      }
    }
  }
}

TEST_CASE("a_step_repeats_its_middle_and_no_more_than_two_steps_are_run") {
  const auto states = [](std::size_t micro_batches) {
    return verify(compile(no_evaluation_model(), {.ranks = 2, .micro_batches = micro_batches})).states;
  };
  // The cold start, and behind it a step of so many segments, and another.
  const auto two_steps = [](std::size_t segments) { return 1 + segments + segments; };
  CHECK(states(1) == two_steps(2));
  CHECK(states(2) == two_steps(3));
  CHECK(states(3) == two_steps(4) + 3);  // alone with its middle twice: the second one, the last, the update
  CHECK(states(5) == states(3));
}

TEST_CASE("the_cost_of_many_programs_is_that_of_their_pairs") {
  const auto states = [](std::size_t programs) {
    return verify(compile(chain_of_programs(6, programs), {.strategy = Strategy::ddp, .ranks = 2})).states;
  };
  CHECK(states(6) < 5 * states(3));  // pairs of 12 steps and evaluations where there were 6
}

TEST_CASE("a_race_names_both_operations_and_the_buffer") {
  Plan plan = sample();
  const std::size_t only = *plan.find(SegmentKind::only);
  const std::size_t cast = find(plan, SegmentKind::only, "cast u2");
  plan.segments[only].operations[cast].waits.clear();
  CHECK(says(verify(plan), ViolationKind::race,
             "race on p0: cast u2 (segment only, #6) does not wait for release p0 of u0 (segment only, #5)"));
}

TEST_CASE("a_stale_read_names_the_reader_the_buffer_and_the_tenant") {
  Plan plan = sample();
  erase(plan, {*plan.find(SegmentKind::only), find(plan, SegmentKind::only, "all-gather u1")});
  const Verification verification = verify(plan);
  CHECK(says(verification, ViolationKind::stale_read, "forward window u1"));
  CHECK(says(verification, ViolationKind::stale_read, "of p1, which were not all written since u1 took it"));
}

TEST_CASE("a_gradient_that_is_dropped_or_used_unreduced_is_lost") {
  Plan plan = sample();
  erase(plan, {*plan.find(SegmentKind::only), find(plan, SegmentKind::only, "reduce-scatter u1")});
  CHECK(says(verify(plan), ViolationKind::lost, "comes before anybody has read what stands in g1"));
  // Sums on the rank stand where they are reduced: only the reduction makes a gradient of them.
  plan = compile(chain_model(3), {.strategy = Strategy::ddp, .ranks = 3, .micro_batches = 2});
  auto& operations = plan.segments[*plan.find(SegmentKind::last)].operations;
  auto& reduced = operations[find(plan, SegmentKind::last, "reduce-scatter u2 to u0 (3 units)")].accesses;
  reduced.resize(4, reduced.front());
  const Verification verification = verify(plan);
  CHECK(says(verification, ViolationKind::lost, "sum of squares u0"));
  CHECK(says(verification, ViolationKind::lost, "optimize u0"));
  CHECK_FALSE(says(verification, ViolationKind::lost, "optimize u1"));
}

TEST_CASE("a_layout_violation_names_the_buffers") {
  Plan plan = sample();
  plan.buffers[1].offset = plan.buffers[0].offset;
  CHECK(says(verify(plan), ViolationKind::layout, "overlap in the arena"));
  plan = sample();
  plan.buffers.back().offset += Bytes(8);
  CHECK(says(verify(plan), ViolationKind::layout, "norms is not aligned in the arena"));
}

TEST_CASE("collectives_without_an_order_of_launch_are_named") {
  Plan plan = sample();
  const std::size_t only = *plan.find(SegmentKind::only);
  plan.segments[only].operations[find(plan, SegmentKind::only, "all-gather u0", 1)].waits.clear();
  CHECK(says(verify(plan), ViolationKind::order, "between reduce-scatter u2"));
}

TEST_CASE("ranks_that_disagree_about_a_collective_are_a_mismatch") {
  const Plan plan = sample();
  Plan deviating = plan;
  erase(deviating, {*plan.find(SegmentKind::update), find(plan, SegmentKind::update, "gather norms")});
  const Verification verification = verify(plan, deviating);
  CHECK(says(verification, ViolationKind::mismatch, "first rank's reduce stream at gather norms"));
  CHECK(verify(plan, sample()).ok());
}

TEST_CASE("ranks_with_different_segments_are_a_mismatch") {
  const Plan deviating = compile(chain_model(3), {.ranks = 3, .micro_batches = 2});
  CHECK(says(verify(sample(), deviating), ViolationKind::mismatch, "different segments"));
}

// One rank reduces after its gather, the other gathers after its reduction.
TEST_CASE("ranks_that_wait_for_each_other_are_a_deadlock") {
  Plan plan = sample();
  const std::size_t only = *plan.find(SegmentKind::only);
  const std::size_t reduce = find(plan, SegmentKind::only, "reduce-scatter u2");
  const std::size_t gather = find(plan, SegmentKind::only, "all-gather u0", 1);
  REQUIRE(reduce < gather);
  Plan deviating = plan;
  launch_before(deviating, only, gather, reduce);
  const auto wait_for = [&](Plan& changed, const std::string& waiter, std::size_t nth, const std::string& recorder,
                            std::size_t of) {
    changed.events.push_back({only, find(changed, SegmentKind::only, recorder, of)});
    changed.segments[only].operations[find(changed, SegmentKind::only, waiter, nth)].waits.push_back(
        {changed.events.size() - 1, WaitType::data});
  };
  wait_for(plan, "all-gather u0", 1, "reduce-scatter u2", 0);
  wait_for(deviating, "reduce-scatter u2", 0, "all-gather u0", 1);
  CHECK(says(verify(plan, deviating), ViolationKind::deadlock, "reduce-scatter u2"));
}

TEST_CASE("verify_wants_a_recompute_window_before_each_backward_one_of_a_unit_that_recomputes") {
  const Plan plan = compile(recomputing_model(), {.ranks = 3, .micro_batches = 2});
  REQUIRE(verify(plan).ok());
  std::size_t mutants = 0;
  each_operation(plan, [&](EventPoint point, const Operation& operation) {
    if (operation.kind != OperationKind::window || operation.window != WindowKind::recompute) return;
    // The verifier looks for the last of unit 1's stretches.
    if (operation.unit == 1 && !operation.resumes) return;
    Plan mutant = plan;
    operation_at(mutant, point).window = WindowKind::forward;
    const Verification verification = verify(mutant);
    if (verification.ok()) {
      // The one of unit 2 inside unit 1's.
      CHECK(operation.unit == 2);
      return;
    }
    ++mutants;
    CHECK(contains(verification.violations.front().text, "no recompute window stands right before it"));
  });
  CHECK(mutants == 2 * 3);  // three units, in each of two segments
}

}  // namespace tessera::plan::verify_test
