// Strategies, prefetch depths, resharding, overlap and test modes leave the bits alone.
#include <doctest/doctest.h>

#include <optional>

#include "../extent.hpp"
#include "toy_model.hpp"

namespace {

using tessera::Strategy;
using toy::Accumulation;
using toy::accumulations;
using toy::Run;

std::vector<int> rank_counts() {
  if (tests::sanitized) return {3};
  return tests::reduced() ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3, 4, 7};
}

// Calls `check` for every sharding variant of `base`.
template <typename Check>
void for_each_variant(const Run& base, Check check) {
  for (const Strategy strategy : {Strategy::zero1, Strategy::zero2}) {
    Run run = base;
    run.options.strategy = strategy;
    check(run);
  }
  for (const std::size_t prefetch : {0, 1, 2}) {
    for (const bool reshard : {true, false}) {
      Run run = base;
      run.options.strategy = Strategy::fsdp;
      run.options.prefetch = prefetch;
      run.options.reshard_after_forward = reshard;
      check(run);
    }
  }
}

template <typename T>
void check_matrix(
    tessera::Precision precision, void (*vary)(Run&) = [](Run&) {}) {
  int compared = 0;
  for (const int ranks : rank_counts()) {
    for (const Accumulation& accumulation : accumulations()) {
      Run base;
      base.ranks = ranks;
      base.steps = tests::sanitized ? 5 : 20;
      base.options.precision = precision;
      base.options.micro_batches = accumulation.micro_batches;
      base.options.accumulation = accumulation.mode;
      base.options.strategy = Strategy::ddp;
      vary(base);
      const toy::Result reference = toy::train<T>(base);
      for_each_variant(base, [&](const Run& run) {
        CAPTURE(toy::describe(run));
        CHECK(toy::same_bits(toy::train<T>(run), reference));
        ++compared;
      });
    }
  }
  MESSAGE(compared << " runs compared with ddp");
}

TEST_CASE("every_strategy_equals_ddp_bitwise") { check_matrix<float>(tessera::fp32_precision); }

TEST_CASE("every_strategy_equals_ddp_bitwise_with_bf16_parameters_gradients_and_wire") {
  check_matrix<tessera::bf16>(tessera::bf16_mixed);
}

// Overflows on one rank are skipped by all; small gradients live on the loss scale.
TEST_CASE("every_strategy_equals_ddp_bitwise_with_fp16_and_a_dynamic_loss_scale") {
  check_matrix<tessera::fp16>(tessera::fp16_mixed, [](Run& run) { run.overflows = {0, 3, 4, 11}; });
}

TEST_CASE("every_strategy_equals_ddp_bitwise_when_values_travel_in_other_types") {
  using tessera::DType;
  check_matrix<tessera::bf16>({DType::bf16, DType::bf16, DType::fp32}, [](Run& run) {
    run.precisions = {{DType::bf16, DType::bf16, DType::fp32},
                      tessera::bf16_mixed,
                      {DType::bf16, DType::bf16, DType::int8, DType::int8},
                      {DType::bf16, DType::bf16, DType::fp16}};
  });
}

TEST_CASE("every_strategy_equals_ddp_bitwise_with_frozen_parameters_and_units") {
  check_matrix<float>(tessera::fp32_precision, [](Run& run) { run.frozen = {0, 1, 2}; });
}

TEST_CASE("test_modes_and_a_queued_compute_stream_leave_the_bits_alone") {
  for (const int ranks : tests::reduced() ? std::vector<int>{2} : std::vector<int>{1, 2, 4}) {
    for (const Strategy strategy : tessera::flat_strategies) {
      for (const Accumulation& accumulation : accumulations()) {
        Run run;
        run.ranks = ranks;
        run.options.strategy = strategy;
        run.options.micro_batches = accumulation.micro_batches;
        run.options.accumulation = accumulation.mode;
        CAPTURE(toy::describe(run));
        const toy::Result reference = toy::train(run);
        Run stressed = run;
        stressed.options.diagnostics.poison = true;
        stressed.options.diagnostics.touch = true;
        CHECK(toy::same_bits(toy::train(stressed), reference));
        stressed.options.diagnostics.queue_compute = true;
        CHECK(toy::same_bits(toy::train(stressed), reference));
        for (const std::uint64_t seed : {1u, 2u}) {
          stressed.options.diagnostics.delay_seed = seed;
          CHECK(toy::same_bits(toy::train(stressed), reference));
        }
      }
    }
  }
}

// No merging, some units together (the toy's are of 312, 7336, 3696 and 96 bytes in fp32), all of them.
constexpr std::size_t bucket_caps[] = {0, 3800, 1 << 20};

template <typename T>
void check_bucket_caps(const Run& base) {
  int compared = 0;
  std::size_t index = 0;
  for (const int ranks : rank_counts()) {
    for (const Accumulation& accumulation : accumulations()) {
      Run run = base;
      run.ranks = ranks;
      run.options.micro_batches = accumulation.micro_batches;
      run.options.accumulation = accumulation.mode;
      std::optional<toy::Result> reference;
      for (const Strategy strategy : tessera::flat_strategies) {
        for (const std::size_t cap : bucket_caps) {
          if (tests::sanitized && ++index % 5 != 1) continue;
          run.options.strategy = strategy;
          run.options.bucket_cap = tessera::Bytes(cap);
          CAPTURE(toy::describe(run));
          const toy::Result result = toy::train<T>(run);
          if (!reference) reference = result;
          CHECK(toy::same_bits(result, *reference));
          ++compared;
        }
      }
    }
  }
  MESSAGE(compared << " runs compared");
}

TEST_CASE("gradients_reduced_together_have_the_bits_of_those_reduced_alone") {
  check_bucket_caps<float>(Run());
  Run mixed;
  mixed.options.precision = tessera::bf16_mixed;
  check_bucket_caps<tessera::bf16>(mixed);
}

// Gradients go by way of a staging buffer for each unit of a bucket; and with units that may not share one.
TEST_CASE("gradients_reduced_together_keep_their_bits_when_they_travel_in_another_type") {
  using tessera::DType;
  Run run;
  run.options.precision = {DType::bf16, DType::bf16, DType::fp32};
  check_bucket_caps<tessera::bf16>(run);
  run.precisions = {{DType::bf16, DType::bf16, DType::fp32}, tessera::bf16_mixed};
  check_bucket_caps<tessera::bf16>(run);
}

TEST_CASE("gradients_reduced_together_keep_their_bits_in_test_modes") {
  for (const Strategy strategy : tessera::flat_strategies) {
    Run run;
    run.ranks = 3;
    run.options.strategy = strategy;
    run.options.bucket_cap = tessera::Bytes(0);
    const toy::Result reference = toy::train(run);
    run.options.diagnostics = {.delay_seed = 1, .poison = true, .touch = true, .queue_compute = true};
    for (const std::size_t cap : bucket_caps) {
      for (const bool overlap : {true, false}) {
        run.options.bucket_cap = tessera::Bytes(cap);
        run.options.overlap_reduction = overlap;
        CHECK(toy::same_bits(toy::train(run), reference));
      }
    }
  }
}

TEST_CASE("evaluation_between_steps_changes_nothing") {
  for (const Strategy strategy : tessera::flat_strategies) {
    Run run;
    run.ranks = 3;
    run.options.strategy = strategy;
    const toy::Result reference = toy::train(run);
    run.evaluate_every = 2;
    const toy::Result evaluated = toy::train(run);
    CHECK(evaluated.evaluations == 2);
    CHECK(toy::same_bits(evaluated, reference));
  }
}

TEST_CASE("units_of_size_zero_and_one_and_ranks_that_own_only_padding_are_ordinary") {
  for (const int ranks : {1, 2, 5, 7}) {
    Run run;
    run.ranks = ranks;
    run.widths = {1, 1, 1};
    run.options.strategy = Strategy::ddp;
    const toy::Result reference = toy::train(run);
    for (const Strategy strategy : tessera::flat_strategies) {
      run.options.strategy = strategy;
      CHECK(toy::same_bits(toy::train(run), reference));
    }
  }
}

// The comparison rests on this: a different number of micro-batches, another clip or another model is seen.
TEST_CASE("the_comparison_sees_differences") {
  Run run;
  run.ranks = 2;
  const toy::Result reference = toy::train(run);
  Run other = run;
  other.clip = 0.25f;
  CHECK_FALSE(toy::same_bits(toy::train(other), reference));
  other = run;
  other.options.seed = 1;
  CHECK_FALSE(toy::same_bits(toy::train(other), reference));
}

}  // namespace
