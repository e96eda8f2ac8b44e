// Many schedules of delays on every stream, over many settings, with everything else that the test modes have: the bits
// are those of an undisturbed run.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "../extent.hpp"
#include "memory/trainee.hpp"

namespace {

using namespace tessera;
using toy::Run;

// A setting for each seed: over the seeds each choice meets each other one.
Run run_of(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  Run run{.options = {.strategy = flat_strategies[below(std::size(flat_strategies))],
                      .micro_batches = 1 + below(3),
                      .accumulation = below(2) == 0 ? AccumulationMode::local : AccumulationMode::reduced,
                      .prefetch = below(4),
                      .reshard_after_forward = below(2) == 0,
                      .overlap_reduction = below(3) != 0,
                      .bucket_cap = Bytes(below(2) * 3800)},
          .ranks = static_cast<int>(1 + below(5)),
          .steps = 3};
  return run;
}

Diagnostics stress_of(std::uint64_t seed) {
  return {.delay_seed = seed, .poison = true, .touch = true, .queue_compute = true};
}

TEST_CASE("whatever_each_stream_is_delayed_by_the_bits_are_the_same") {
  for (std::uint64_t seed = 0; seed < (tests::reduced() ? 8 : 60); ++seed) {
    Run run = run_of(seed);
    CAPTURE(seed);
    CAPTURE(toy::describe(run));
    const toy::Result reference = toy::train(run);
    run.options.diagnostics = stress_of(seed);
    CHECK(toy::same_bits(toy::train(run), reference));
  }
}

// Nothing is read until the end, so the host is as far ahead as the plan lets it.
toy::Weights weights_without_reading(const Run& run) {
  toy::Weights weights;
  launch({.ranks = run.ranks, .timeout = std::chrono::seconds(60)}, [&](World& world) {
    toy::Trainee<float> trainee(world, run);
    for (int step = 0; step < 6; ++step) {
      trainee.step();
      if (step == 2) trainee.evaluate();
    }
    toy::collect_weights(trainee.model(), weights);
  });
  return weights;
}

// Its second update waits for the first, which stands behind a task that another thread lets go.
TEST_CASE("the_host_is_at_most_one_step_ahead_of_the_streams") {
  for (const Strategy strategy : flat_strategies) {
    Run run{.options = {.strategy = strategy, .diagnostics = {.queue_compute = true}}, .ranks = 2};
    launch({.ranks = run.ranks, .timeout = std::chrono::seconds(60)}, [&](World& world) {
      toy::Trainee<float> trainee(world, run);
      std::atomic<bool> open = false;
      trainee.model().stream().submit([&open] { open.wait(false); });
      trainee.step();
      CHECK_FALSE(open);
      std::thread opener([&open] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        open = true;
        open.notify_all();
      });
      trainee.step();
      CHECK(open);
      trainee.model().synchronize();
      opener.join();
    });
  }
}

TEST_CASE("a_host_that_runs_ahead_of_delayed_streams_changes_no_bit") {
  for (std::uint64_t seed = 1000; seed < (tests::reduced() ? 1006 : 1040); ++seed) {
    Run run = run_of(seed);
    CAPTURE(seed);
    CAPTURE(toy::describe(run));
    const toy::Weights reference = weights_without_reading(run);
    run.options.diagnostics = stress_of(seed);
    CHECK(toy::same_bits(weights_without_reading(run), reference));
  }
}

}  // namespace
