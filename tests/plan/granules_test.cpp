// Plans of steps in granules: one number of them, however many ranks there are.
#include <doctest/doctest.h>

#include <algorithm>

#include "checks.hpp"
#include "errors.hpp"
#include "models.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::granules_test {

std::vector<const Operation*> reductions_of(const Plan& plan, SegmentKind kind) {
  std::vector<const Operation*> result;
  for (const Operation& operation : plan.segments[plan.find(kind).value()].operations) {
    if (operation.kind == OperationKind::reduce_scatter) result.push_back(&operation);
  }
  return result;
}

TEST_CASE("granules_are_dealt_once_each_and_in_order") {
  for (const std::size_t total : {1u, 7u, 12u}) {
    for (std::size_t ranks = 1; ranks <= total; ++ranks) {
      std::vector<std::size_t> dealt;
      for (std::size_t round = 0; round < Granules{total, ranks, 0}.rounds(); ++round) {
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          const Granules mine{total, ranks, rank};
          if (round < mine.mine()) dealt.push_back(mine.number(round));
        }
      }
      CHECK(dealt.size() == total);
      CHECK(std::is_sorted(dealt.begin(), dealt.end()));
      CHECK(dealt.back() == total - 1);
    }
  }
}

TEST_CASE("plans_of_granules_are_sound") {
  for (const Model& model : {chain_model(3), tied_model(), varied_model(), recompute_model(), empty_unit_model()}) {
    for (const Strategy strategy : all_strategies) {
      for (const std::size_t ranks : {1u, 2u, 6u, 7u}) {
        for (const Precision& precision : {fp32_precision, bf16_mixed}) {
          const PlanOptions options{.strategy = strategy,
                                    .precision = precision,
                                    .ranks = ranks,
                                    .replicas = ranks == 6 ? 2u : 1u,
                                    .granules = 13};
          INFO(model.name << ", " << describe(options));
          check_sound(verify(compile(model, options)));
        }
      }
    }
  }
}

// Whatever the mesh, each micro-batch is summed over all ranks at once, to what other micro-batches have left, and the
// last one divides by the granules.
TEST_CASE("each_round_goes_on_with_the_sum_over_all_ranks") {
  for (const Strategy strategy : all_strategies) {
    const Plan plan = compile(chain_model(3), {.strategy = strategy, .ranks = 4, .replicas = 2, .granules = 11});
    CHECK(plan.micro_batches(0) == 3);
    CHECK(plan.options.accumulation == AccumulationMode::reduced);
    for (const SegmentKind kind : {SegmentKind::first, SegmentKind::middle, SegmentKind::last}) {
      for (const Operation* reduction : reductions_of(plan, kind)) {
        CHECK(reduction->group == (Axis::replicate | Axis::shard));
        CHECK(reduction->add == (kind != SegmentKind::first));
        CHECK(reduction->continues == reduction->add);
        CHECK(reduction->divisor == (kind == SegmentKind::last ? 11u : 1u));
      }
    }
  }
}

// A program's own number counts granules, too.
TEST_CASE("programs_may_have_granules_of_their_own") {
  Model model = chain_model(2);
  model.program.micro_batches = 5;
  const Plan plan = compile(model, {.ranks = 3, .granules = 9});
  CHECK(plan.micro_batches(0) == 2);
  CHECK(plan.gradient_divisor(0) == 5);
  CHECK(plan.granules(0, 2).mine() == 1);
}

// A row for each rank: four words for each unit's norm, two for what the rank brings, and a weight for each round.
TEST_CASE("norms_of_granules_take_four_words_and_weights_one_for_each_round") {
  const Plan plan = compile(chain_model(3), {.ranks = 5, .granules = 12});
  CHECK(plan.buffers[plan.program_buffers[0].norms].size == Bytes((3 * 32 + 16 + 3 * 8) * 5));
}

// Sums over all replicas at once need no place for those inside one.
TEST_CASE("fsdp_of_several_replicas_keeps_one_shard_of_a_gradient") {
  const auto gradients = [](std::size_t granules) {
    const Plan plan =
        compile({"one unit", {unit_of("u", {4096})}, Program::chain(1)}, {.strategy = Strategy::fsdp,
                                                                          .ranks = 4,
                                                                          .replicas = 2,
                                                                          .micro_batches = granules > 0 ? 1u : 2u,
                                                                          .granules = granules});
    return plan.buffers[plan.unit_buffers[0][Role::gradient].buffer].size;
  };
  CHECK(gradients(8) == Bytes(4096));
  CHECK(gradients(0) == Bytes(8192));
}

TEST_CASE("what_depends_on_the_number_of_ranks_is_refused") {
  const auto refused = [](const Model& model, const PlanOptions& options, const char* why) {
    const std::string text = refusal(model, options);
    INFO(text);
    CHECK(contains(text, "granules is 8: "));
    CHECK(contains(text, why));
  };
  using enum AccumulationMode;
  refused(chain_model(2), {.ranks = 2, .micro_batches = 2, .granules = 8}, "micro_batches is 2");
  refused(chain_model(2), {.ranks = 2, .granules = 8, .accumulation = local}, "mode local");
  refused(chain_model(2), {.ranks = 2, .granules = 8, .collective_staging = CollectiveStaging::results},
          "NCCL forms sums in an order of its own");
  refused(chain_model(2), {.ranks = 9, .granules = 8}, "a step has 8 granules, too few for 9 ranks");
  refused(chain_model(2), {.ranks = 4, .replicas = 2, .outer_every = 3, .granules = 8}, "outer.every");
  refused(experts_model(), {.ranks = 4, .replicas = 2, .granules = 8}, "has other values along replicate");
  refused(collecting_model(), {.ranks = 2, .granules = 8}, "together over ranks inside its window");
  Model gathers = chain_model(2);
  gathers.units[0].collectives.push_back({.name = "u0.c", .elements = 4, .of_granules = true});
  CHECK(verify(compile(gathers, {.ranks = 4, .replicas = 2, .granules = 8})).ok());
  gathers.units[0].collectives[0].axes = Axis::shard;
  refused(gathers, {.ranks = 4, .replicas = 2, .granules = 8}, "together over ranks inside its window");
  refused(chain_model(2), {.mesh = MeshShape({{Axis::shard, 2}, {Axis::tensor, 2}}), .granules = 8}, "along tensor");
  Model few = chain_model(2);
  few.program.micro_batches = 3;
  refused(few, {.ranks = 4, .granules = 8}, "of program \"train\" has 3 granules");
}

}  // namespace tessera::plan::granules_test
