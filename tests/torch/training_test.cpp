// Sharded torch modules learn what the plain ones learn, with the same bits under every strategy.
#include "networks.hpp"

#include <algorithm>
#include <cmath>

namespace training_test {

using networks::Kind;
using networks::Run;
using tessera::Strategy;

void check_strategies(const Run& base) {
  Run run = base;
  run.options.strategy = Strategy::ddp;
  const networks::Result reference = networks::train(run);
  REQUIRE(std::isfinite(reference.losses.back()));
  for (const Strategy strategy : {Strategy::zero1, Strategy::zero2, Strategy::fsdp}) {
    CAPTURE(tessera::to_string(strategy));
    run.options.strategy = strategy;
    CHECK(networks::train(run) == reference);
  }
}

TEST_CASE("strategies_agree_bitwise") {
  for (const Kind& kind : networks::all_kinds()) {
    for (const int ranks : {1, 2, 3}) {
      CAPTURE(kind.name);
      CAPTURE(ranks);
      check_strategies({.kind = kind, .ranks = ranks});
    }
  }
}

TEST_CASE("strategies_agree_bitwise_with_micro_batches_and_clipping") {
  for (const Kind& kind : networks::all_kinds()) {
    CAPTURE(kind.name);
    check_strategies({.kind = kind,
                      .ranks = 2,
                      .clip_norm = 0.5f,
                      .options = {.micro_batches = 2, .accumulation = tessera::AccumulationMode::reduced}});
  }
}

TEST_CASE("strategies_agree_bitwise_with_bf16_windows") {
  for (const Kind& kind : {networks::all_kinds()[0], networks::all_kinds()[2]}) {
    CAPTURE(kind.name);
    check_strategies({.kind = kind, .ranks = 2, .options = {.precision = tessera::bf16_mixed}});
  }
}

TEST_CASE("strategies_agree_bitwise_on_a_mesh_and_with_a_loss_scale") {
  const Kind kind = networks::all_kinds()[1];
  Run run{.kind = kind,
          .ranks = 4,
          .options = {.replicas = 2, .loss_scaling = tessera::kernels::LossScaling{.initial = 1024.0f}}};
  run.options.strategy = Strategy::ddp;
  const networks::Result reference = networks::train(run);
  for (const Strategy strategy : {Strategy::fsdp, Strategy::hsdp, Strategy::hfsdp}) {
    CAPTURE(tessera::to_string(strategy));
    run.options.strategy = strategy;
    CHECK(networks::train(run) == reference);
  }
  // The scale is a power of two: it changes nothing that fp32 holds.
  run.options.loss_scaling = std::nullopt;
  CHECK(networks::train(run) == reference);
}

TEST_CASE("delays_poison_and_a_queued_compute_stream_change_no_bit") {
  for (const Kind& kind : networks::all_kinds()) {
    CAPTURE(kind.name);
    Run run{.kind = kind, .ranks = 2, .options = {.strategy = Strategy::fsdp}};
    const networks::Result quiet = networks::train(run);
    run.options.diagnostics = {.delay_seed = 3, .poison = true, .touch = true, .queue_compute = true};
    CHECK(networks::train(run) == quiet);
  }
}

void check_losses(const std::vector<float>& sharded, const std::vector<float>& plain) {
  REQUIRE(sharded.size() == plain.size());
  for (std::size_t step = 0; step < plain.size(); ++step) {
    CAPTURE(step);
    CHECK(std::abs(sharded[step] - plain[step]) <= 1e-5f * std::abs(plain[step]));
  }
}

TEST_CASE("losses_of_30_steps_are_those_of_the_plain_module") {
  for (const Kind& kind : networks::all_kinds()) {
    for (const int ranks : {1, 2, 3}) {
      CAPTURE(kind.name);
      CAPTURE(ranks);
      const Run run{.kind = kind, .ranks = ranks, .steps = 30};
      check_losses(networks::train(run).losses, networks::plain_losses(run));
    }
  }
}

TEST_CASE("losses_of_30_steps_are_those_of_the_plain_module_with_micro_batches_and_clipping") {
  for (const Kind& kind : networks::all_kinds()) {
    CAPTURE(kind.name);
    const Run run{.kind = kind, .ranks = 2, .steps = 30, .clip_norm = 0.5f, .options = {.micro_batches = 2}};
    check_losses(networks::train(run).losses, networks::plain_losses(run));
  }
}

TEST_CASE("ranks_learn_what_one_rank_learns_of_their_joined_batch") {
  for (const Kind& kind : {networks::all_kinds()[0], networks::all_kinds()[2]}) {
    CAPTURE(kind.name);
    Run run{.kind = kind, .ranks = 1, .steps = 30};
    const std::vector<float> joined = networks::plain_losses(run);
    run.ranks = 3;
    check_losses(networks::train(run).losses, joined);
  }
}

}  // namespace training_test
