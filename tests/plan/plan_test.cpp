// Hashes tell plans apart, and successors say which segment may follow which.
#include "tessera/plan/plan.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "matrix.hpp"
#include "tessera/plan/draw.hpp"

namespace tessera::plan::plan_test {

Plan sample() { return compile(chain_model(3), {.precision = bf16_mixed, .ranks = 3, .micro_batches = 2}); }

template <typename Change>
std::uint64_t hash_after(Change change) {
  Plan plan = sample();
  change(plan);
  return hash(plan);
}

// The first operation of a kind in the first micro-batch.
Operation& first_of(Plan& plan, OperationKind kind) {
  auto& operations = plan.segments[*plan.find(SegmentKind::first)].operations;
  return *std::find_if(operations.begin(), operations.end(), [&](const Operation& o) { return o.kind == kind; });
}

std::vector<SegmentKind> kinds_after(const Plan& plan, SegmentKind kind) {
  std::vector<SegmentKind> result;
  for (const std::size_t segment : successors(plan, *plan.find(kind))) result.push_back(plan.segments[segment].kind);
  return result;
}

TEST_CASE("equal_input_gives_an_equal_hash_and_different_input_a_different_one") {
  std::set<std::uint64_t> hashes;
  std::size_t plans = 0;
  for_sampled_plans([&](const Model& model, const PlanOptions& options, const Plan& plan) {
    CHECK(hash(plan) == hash(compile(model, options)));
    hashes.insert(hash(plan));
    ++plans;
  });
  CHECK(hashes.size() == plans);
}

TEST_CASE("the_hash_sees_names_shapes_and_states") {
  const CompileInput input = input_of(chain_model(2), {.ranks = 3});
  const auto hash_of = [&](auto change) {
    CompileInput changed = input;
    change(changed);
    return hash(compile(changed));
  };
  const std::set<std::uint64_t> hashes = {
      hash_of([](CompileInput&) {}),
      hash_of([](CompileInput& in) { in.units[0].name = "other"; }),
      hash_of([](CompileInput& in) { in.units[0].parameters[0].name = "other"; }),
      hash_of([](CompileInput& in) {
        in.units[0].parameters[0].shape = {1, 997};
      }),
      hash_of([](CompileInput& in) { in.units[0].parameters[0].optional = true; }),
      hash_of([](CompileInput& in) { in.optimizer_states = {"momentum"}; }),
      hash_of([](CompileInput& in) {
        in.optimizer_states = {StateSpec("m", DType::u8), "v"};
      }),
      hash_of([](CompileInput& in) {
        in.optimizer_states = {"m", StateSpec("v", DType::fp32, 64)};
      }),
      hash_of([](CompileInput& in) { in.programs.front().evaluation.clear(); }),
      hash_of([](CompileInput& in) { in.options.precision = bf16_mixed; }),
  };
  CHECK(hashes.size() == 10);
}

TEST_CASE("the_hash_sees_every_field_that_is_executed") {
  using enum OperationKind;
  const std::set<std::uint64_t> hashes = {
      hash_after([](Plan&) {}),
      hash_after([](Plan& plan) { first_of(plan, window).stream = StreamId::reduce; }),
      hash_after([](Plan& plan) { first_of(plan, window).unit = 1; }),
      hash_after([](Plan& plan) { first_of(plan, window).window = WindowKind::recompute; }),
      hash_after([](Plan& plan) { first_of(plan, window).kind = cast; }),
      hash_after([](Plan& plan) { first_of(plan, reduce_scatter).add = true; }),
      hash_after([](Plan& plan) { first_of(plan, reduce_scatter).divisor = 7; }),
      hash_after([](Plan& plan) { first_of(plan, reduce_scatter).wire = DType::fp16; }),
      hash_after([](Plan& plan) { first_of(plan, reduce_scatter).group = Axis::replicate; }),
      hash_after([](Plan& plan) { first_of(plan, all_gather).accesses[0].range.buffer += 1; }),
      hash_after([](Plan& plan) { first_of(plan, all_gather).accesses[0].range.offset += Bytes(2); }),
      hash_after([](Plan& plan) { first_of(plan, all_gather).accesses[0].range.strides[0] += Bytes(2); }),
      hash_after([](Plan& plan) { first_of(plan, all_gather).accesses[0].range.strides[3] += Bytes(2); }),
      hash_after([](Plan& plan) { first_of(plan, all_gather).accesses[0].range.size += Bytes(2); }),
      hash_after([](Plan& plan) { first_of(plan, all_gather).accesses[0].mode = AccessMode::discard; }),
      hash_after([](Plan& plan) { first_of(plan, all_gather).accesses[0].tenant = 2; }),
      hash_after([](Plan& plan) { first_of(plan, all_gather).accesses[0].role = Role::state; }),
      hash_after([](Plan& plan) { first_of(plan, window).waits.clear(); }),
      hash_after([](Plan& plan) { first_of(plan, window).waits[0].type = WaitType::order; }),
      hash_after([](Plan& plan) { plan.events[first_of(plan, window).waits[0].event].operation -= 1; }),
      hash_after([](Plan& plan) { plan.buffers[1].offset += Bytes(512); }),
      hash_after([](Plan& plan) { plan.buffers[1].size += Bytes(512); }),
      hash_after([](Plan& plan) { plan.buffers[1].space = MemorySpace::host; }),
      hash_after([](Plan& plan) { plan.segments[1].kind = SegmentKind::only; }),
      hash_after([](Plan& plan) { plan.options.prefetch = 9; }),
      hash_after([](Plan& plan) {
        plan.mesh = {{Axis::shard, 9}};
      }),
      hash_after([](Plan& plan) { plan.options.bucket_cap = Bytes(9); }),
      hash_after([](Plan& plan) {
        Operation& first = first_of(plan, reduce_scatter);  // as if it were of a bucket of two
        first.accesses.insert(first.accesses.end(), {first.accesses[0], first.accesses[1]});
      }),
  };
  CHECK(hashes.size() == 28);
}

TEST_CASE("a_step_runs_its_micro_batches_and_then_its_update") {
  using enum SegmentKind;
  const auto plan_of = [](Strategy strategy, std::size_t micro_batches) {
    return compile(chain_model(2), {.strategy = strategy, .ranks = 2, .micro_batches = micro_batches});
  };
  const Plan one = plan_of(Strategy::ddp, 1);
  for (const SegmentKind between : {cold, refresh, update, evaluation}) {
    CHECK(kinds_after(one, between) == std::vector{refresh, only, evaluation});
  }
  CHECK(kinds_after(one, only) == std::vector{update});

  const Plan two = plan_of(Strategy::fsdp, 2);
  CHECK(kinds_after(two, cold) == std::vector{first, evaluation});
  CHECK(kinds_after(two, first) == std::vector{last});
  CHECK(kinds_after(two, last) == std::vector{update});

  const Plan four = plan_of(Strategy::fsdp, 4);
  CHECK(kinds_after(four, first) == std::vector{middle});
  CHECK(kinds_after(four, middle) == std::vector{middle, last});
}

TEST_CASE("operations_are_described_by_kind_and_unit") {
  Plan plan = sample();
  CHECK(describe(plan, first_of(plan, OperationKind::all_gather)) == "all-gather u0");
  CHECK(describe(plan, first_of(plan, OperationKind::window)) == "forward window u0");
  CHECK(describe(plan, first_of(plan, OperationKind::release)) == "release p0 of u0");
  CHECK(describe(plan, EventPoint{*plan.find(SegmentKind::first), 1}) == "all-gather u0 (segment first, #1)");
}

}  // namespace tessera::plan::plan_test
