// Parameters and gradients that travel in another type than windows have (Precision::gather and wire).
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>

#include "checks.hpp"
#include "errors.hpp"
#include "models.hpp"
#include "tessera/base/error.hpp"
#include "tessera/plan/memory.hpp"
#include "tessera/plan/verify.hpp"

namespace tessera::plan::gather_test {

Precision in_codes(Precision types) {
  types.gather = DType::int8;
  types.wire = DType::int8;
  return types;
}

// Bytes that all ranks of a group bring to collectives of a kind in the segment of one micro-batch and the update.
Bytes brought(const Plan& plan, OperationKind kind) {
  Bytes total;
  for (const Segment& segment : plan.segments) {
    if (segment.kind != SegmentKind::only && segment.kind != SegmentKind::update) continue;
    for (const Operation& operation : segment.operations) {
      if (operation.kind != kind) continue;
      const bool sums = kind == OperationKind::reduce_scatter;
      for (std::size_t move = 0; move < operation.moves(); ++move) {
        total += (sums ? operation.source(move) : operation.target(move)).range.size;
      }
    }
  }
  return total;
}

// Parameters end with a block, so that no padding differs.
Model whole_blocks() {
  Model model{"whole blocks", {}, Program::chain(3)};
  for (std::size_t unit = 0; unit < 3; ++unit) {
    model.units.push_back(unit_of(fmt::format("u{}", unit), {12 * 256, 24 * 256}));
  }
  return model;
}

std::string failure(const PlanOptions& options) { return refusal(chain_model(2), options); }

TEST_CASE("plans_in_codes_are_proved_for_every_strategy_and_model") {
  for (const Model& model : all_models()) {
    for (const Strategy strategy : all_strategies) {
      for (const Precision& types : {fp32_precision, bf16_mixed}) {
        for (const std::size_t ranks : {1u, 3u, 4u}) {
          const bool moves = types == bf16_mixed && ranks != 3 && model.name != "whole tensors";
          const MemorySpace place = moves ? MemorySpace::host : MemorySpace::device;
          const PlanOptions options{.strategy = strategy,
                                    .precision = in_codes(types),
                                    .ranks = ranks,
                                    .replicas = ranks == 4 ? 2u : 1u,
                                    .micro_batches = ranks == 3 ? 2u : 1u,
                                    .reshard_after_forward = ranks == 4 ? Resharding(Axis::shard) : Resharding(),
                                    .offload = {.optimizer = place, .masters = place}};
          CAPTURE(model.name);
          CAPTURE(describe(options));
          const Plan plan = compile(model, options);
          check_sound(verify(plan));
          for (const UnitLayout& layout : plan.layouts) CHECK(layout.shard_elements() % 256 == 0);
        }
      }
    }
  }
}

TEST_CASE("what_travels_in_codes_is_a_quarter_of_fp32_and_half_of_bf16_and_a_64th_for_scales") {
  for (const Strategy strategy : {Strategy::zero2, Strategy::fsdp}) {
    for (const Precision& types : {fp32_precision, bf16_mixed}) {
      const PlanOptions plain{.strategy = strategy, .precision = types, .ranks = 3, .bucket_cap = Bytes(0)};
      PlanOptions coded = plain;
      coded.precision = in_codes(types);
      const Plan before = compile(whole_blocks(), plain), after = compile(whole_blocks(), coded);
      for (const OperationKind kind : {OperationKind::all_gather, OperationKind::reduce_scatter}) {
        const std::uint64_t elements = brought(before, kind).count() / size_of(types.parameter).count();
        REQUIRE(elements > 0);
        CHECK(brought(after, kind) == Bytes(elements + elements / 64));
      }
    }
  }
}

// A quarter of the masters travel and stay, with scales; what is added is one slot of codes.
TEST_CASE("codes_take_one_slot_and_are_what_hfsdp_keeps") {
  const Model model = whole_blocks();
  const auto kept = [&](Strategy strategy, const Precision& types) {
    return compile(model, {.strategy = strategy, .precision = types, .ranks = 4, .replicas = 2});
  };
  const Plan hfsdp = kept(Strategy::hfsdp, in_codes(bf16_mixed));
  for (std::size_t unit = 0; unit < 3; ++unit) {
    const Content& content = hfsdp.unit_buffers[unit][Role::kept];
    CHECK(content.type == DType::int8);
    CHECK(hfsdp.buffers[content.buffer].size == Bytes(18 * 260));  // half of 36 blocks
    CHECK(hfsdp.unit_buffers[unit][Role::encoded].buffer == hfsdp.unit_buffers[0][Role::encoded].buffer);
  }
  const Plan plain = kept(Strategy::fsdp, bf16_mixed), coded = kept(Strategy::fsdp, in_codes(bf16_mixed));
  const auto slots = [](const Plan& plan) { return bytes_in(plan, Category::parameter_slots); };
  CHECK(slots(coded) == slots(plain) + Bytes(36 * 260));
}

TEST_CASE("types_that_cannot_travel_are_refused_by_name") {
  CHECK(contains(failure({.precision = {.parameter = DType::int8}}), "the model is to compute with int8"));
  CHECK(contains(failure({.precision = {.gather = DType::u8}}), "to travel in u8"));
  CHECK(contains(failure({.precision = {DType::bf16, DType::bf16, DType::bf16, DType::fp16}}),
                 "parameters of the model are to travel in fp16, and are bf16, which is no larger"));
  CHECK(contains(failure({.precision = {.wire = DType::int8}, .collective_staging = CollectiveStaging::results}),
                 "NCCL's own sums cannot add: choose SumChoice::ranked"));
  CHECK(failure({.precision = {.gather = DType::bf16}}).empty());
}

// A plan whose windows read what masters are, past the codes, would train with other weights than other strategies.
TEST_CASE("a_way_past_the_codes_is_an_objection") {
  Plan plan = compile(chain_model(3), {.strategy = Strategy::ddp, .precision = in_codes(bf16_mixed), .ranks = 2});
  std::size_t changed = 0;
  for (Segment& segment : plan.segments) {
    for (Operation& operation : segment.operations) {
      if (operation.kind != OperationKind::cast || operation.source().role != Role::encoded) continue;
      const UnitBuffers& buffers = plan.unit_buffers[operation.unit];
      Access& from = operation.accesses.front();
      from.role = Role::master;
      from.range = {buffers[Role::master].buffer, Bytes(0), operation.target().range.size * 2};
      ++changed;
    }
  }
  const Verification result = verify(plan);
  CHECK(changed > 0);
  CHECK(std::count_if(result.violations.begin(), result.violations.end(), [](const Violation& each) {
          return contains(each.text, "not by way of what travels");
        }) == static_cast<std::ptrdiff_t>(changed));
}

}  // namespace tessera::plan::gather_test
