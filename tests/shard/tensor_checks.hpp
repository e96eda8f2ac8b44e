// Trainings that must have the bits of a plain one of whole tensors, whatever the strategy, the wrapping, the mesh and
// the number of ranks. train(training): the masters and states that a tensors::Training comes to.
#pragma once

#include <doctest/doctest.h>

#include <vector>

#include "tensors.hpp"
#include "toy_model.hpp"

namespace tensors {

using tessera::Strategy;

template <typename Train>
void check_strategies(const Values& expected, const std::vector<Wrapping>& wrappings,
                      const std::vector<int>& rank_counts, Train train) {
  for (const Wrapping& wrapping : wrappings) {
    for (const int ranks : rank_counts) {
      for (const Strategy strategy : {Strategy::ddp, Strategy::zero1, Strategy::zero2, Strategy::fsdp}) {
        CAPTURE(wrapping.size());
        CAPTURE(ranks);
        CAPTURE(to_string(strategy));
        CHECK((train({ranks, {.strategy = strategy}, wrapping}) == expected));
      }
    }
  }
}

// On meshes, with states in the host's memory and in test modes.
template <typename Train>
void check_places(const Values& expected, const Wrapping& wrapping, Train train) {
  for (const Strategy strategy : {Strategy::hsdp, Strategy::hfsdp, Strategy::fsdp}) {
    CAPTURE(to_string(strategy));
    CHECK((train({6, {.strategy = strategy, .replicas = 2}, wrapping}) == expected));
  }
  for (const int ranks : {1, 3}) {
    Training training{ranks, {.strategy = Strategy::fsdp}, wrapping, tessera::MemorySpace::host};
    CHECK((train(training) == expected));
    training.options.diagnostics = {.delay_seed = 5, .poison = true, .touch = true, .queue_compute = true};
    CHECK((train(training) == expected));
  }
}

template <typename Train>
void check_recompiled(const Values& expected, const Wrapping& wrapping, Train train) {
  for (const int ranks : {1, 3}) {
    CHECK((train({.ranks = ranks, .wrapping = wrapping, .recompiles = true}) == expected));
  }
}

// Every strategy has ddp's bits, which are returned: with clipping, several micro-batches, a step that is skipped,
// frozen parameters and gradients of 16 bits. The run says the optimizer, the types and how many ranks.
inline toy::Result check_in_mixed_precision(toy::Run& run) {
  run.widths = {3, 86, 3, 257, 1};
  run.options.micro_batches = 2;
  run.options.accumulation = tessera::AccumulationMode::reduced;
  run.frozen = {0};
  run.overflows = {2};
  run.options.strategy = Strategy::ddp;
  const toy::Result expected = toy::train<tessera::bf16>(run);
  for (const Strategy strategy : {Strategy::zero1, Strategy::zero2, Strategy::fsdp}) {
    run.options.strategy = strategy;
    INFO(toy::describe(run));
    CHECK(toy::same_bits(toy::train<tessera::bf16>(run), expected));
  }
  return expected;
}

}  // namespace tensors
