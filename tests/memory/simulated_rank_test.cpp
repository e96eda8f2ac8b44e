// The one real rank of an imagined job takes the bytes of the same rank of a real job, planned and measured, and can be
// that of jobs which no machine has room for.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "memory/measured.hpp"
#include "memory/models.hpp"
#include "memory/require_probe.hpp"
#include "memory/trainee.hpp"
#include "probe/hollow_model.hpp"
#include "tessera/base/half.hpp"
#include "tessera/comm/simulate.hpp"
#include "tessera/plan/memory.hpp"

namespace simulated_rank_test {

using namespace tessera;
using toy::Run;

struct Taken {
  probe::RankMemory memory;
  std::uint64_t plan;
};

template <typename T>
Taken train(World& world, const Run& run) {
  toy::Trainee<T> trainee(world, run);
  trainee.run_every_segment();
  trainee.step();
  trainee.model().synchronize();
  return {probe::measure(trainee.model()), plan::hash(trainee.model().plan())};
}

template <typename T>
std::vector<Taken> train_real_ranks(const Run& run) {
  std::vector<Taken> taken(std::size_t(run.ranks));
  launch({.ranks = run.ranks, .timeout = std::chrono::seconds(20)},
         [&](World& world) { taken[std::size_t(world.rank())] = train<T>(world, run); });
  return taken;
}

template <typename T>
Taken train_simulated(const Run& run, int rank) {
  Taken taken{};
  simulate({.ranks = run.ranks, .rank = rank}, [&](World& world) { taken = train<T>(world, run); });
  return taken;
}

void check_same(const Taken& real, const Taken& simulated) {
  CHECK(real.plan == simulated.plan);
  for (std::size_t index = 0; index < plan::category_count; ++index) {
    CAPTURE(measured::category_name(index));
    CHECK(simulated.memory.categories[index].planned.count() == real.memory.categories[index].planned.count());
    CHECK(simulated.memory.categories[index].measured.count() == real.memory.categories[index].measured.count());
  }
  CHECK(simulated.memory.peak.planned.count() == real.memory.peak.planned.count());
  CHECK(simulated.memory.peak.measured.count() == real.memory.peak.measured.count());
  CHECK(simulated.memory.live.count() == real.memory.live.count());
}

template <typename T>
void check_ranks(const Run& run) {
  const std::vector<Taken> real = train_real_ranks<T>(run);
  for (int rank = 0; rank < run.ranks; ++rank) {
    CAPTURE(toy::describe(run));
    CAPTURE(rank);
    const Taken simulated = train_simulated<T>(run, rank);
    measured::check_as_planned(std::span(&simulated.memory, 1));
    check_same(real[std::size_t(rank)], simulated);
  }
}

template <typename T>
void check_every_rank(Precision precision) {
  for (const Strategy strategy : flat_strategies) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      Run run{.options = {.strategy = strategy,
                          .precision = precision,
                          .micro_batches = ranks % 2 == 0 ? 3u : 1u,
                          .activations = Bytes(70'001)},
              .ranks = ranks};
      check_ranks<T>(run);
    }
  }
}

TEST_CASE("simulated_rank_of_a_mesh_takes_the_bytes_of_the_real_one") {
  REQUIRE_PROBE();
  for (const Strategy strategy : all_strategies) {
    Run run{.options = {.strategy = strategy, .replicas = 3, .precision = bf16_mixed}, .ranks = 6};
    check_ranks<bf16>(run);
  }
}

TEST_CASE("a_rank_of_a_mesh_of_64_by_8_holds_what_the_plan_says") {
  REQUIRE_PROBE();
  for (const Strategy strategy : all_strategies) {
    Run run{.options = {.strategy = strategy, .replicas = 64}, .ranks = 512};
    const Taken simulated = train_simulated<float>(run, 509);
    measured::check_as_planned(std::span(&simulated.memory, 1));
  }
}

TEST_CASE("simulated_rank_takes_the_bytes_of_the_real_one") {
  REQUIRE_PROBE();
  check_every_rank<float>(fp32_precision);
  check_every_rank<bf16>(bf16_mixed);
  check_every_rank<fp16>(fp16_mixed);
}

// In the toy model all weights are gathered: zeros where there are no peers, and no value that is not finite.
TEST_CASE("simulated_rank_trains_on_finite_values_in_test_modes_too") {
  for (const Strategy strategy : flat_strategies) {
    for (const int rank : {0, 17, 511}) {
      Run run{.options = {.strategy = strategy,
                          .diagnostics = {.delay_seed = 5, .poison = true, .touch = true, .queue_compute = true}},
              .ranks = 512};
      simulate({.ranks = run.ranks, .rank = rank}, [&](World& world) {
        toy::Trainee<float> trainee(world, run);
        trainee.run_every_segment();
        trainee.step();
        const StepReport report = trainee.model().last_step();
        CHECK_FALSE(report.skipped);
        CHECK(std::isfinite(report.gradient_norm));
      });
    }
  }
}

TEST_CASE("one_rank_of_512_and_of_16384_runs_in_little_memory") {
  REQUIRE_PROBE();
  for (const measured::NamedModel& named : measured::six_models()) {
    for (const int ranks : {512, 16384}) {
      for (const Strategy strategy : flat_strategies) {
        CAPTURE(named.name);
        CAPTURE(ranks);
        CAPTURE(to_string(strategy));
        simulate({.ranks = ranks, .rank = ranks / 3}, [&](World& world) {
          probe::HollowModel hollow(world, named.model.units, {.strategy = strategy, .program = named.model.program});
          hollow.step();
          hollow.evaluate();
          hollow.model().synchronize();
          const probe::RankMemory taken = probe::measure(hollow.model());
          measured::check_as_planned(std::span(&taken, 1));
          CHECK(taken.peak.measured < Bytes(std::uint64_t{1} << 30));
        });
      }
    }
  }
}

}  // namespace simulated_rank_test
