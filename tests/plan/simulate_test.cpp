// The simulation of a step owes these: the laws of a schedule, agreement with a naive simulation of every rank, speed,
// and one clear line for nonsense.
#include "tessera/plan/simulate.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "errors.hpp"
#include "matrix.hpp"
#include "naive_simulation.hpp"
#include "tessera/base/error.hpp"

namespace tessera::plan::simulate_test {

using doctest::Approx;

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// In bf16, whatever else the options say.
Plan plan_of(PlanOptions options, const Model& model = chain_model(5)) {
  options.precision = bf16_mixed;
  return compile(model, options);
}

bool computes(const Operation& operation) { return operation.stream == StreamId::compute; }

// Windows take their unit's number and more; collectives their bytes by a bandwidth; everything else what is said.
struct Simple {
  double bandwidth = 1000;  // bytes a second
  double casts = 0;
  double rest = 0;

  double operator()(const Operation& operation) const {
    if (operation.kind == OperationKind::window) return operation.window == WindowKind::backward ? 2.0 : 1.0;
    if (operation.kind == OperationKind::cast) return casts;
    if (!is_collective(operation.kind)) return rest;
    double bytes = 0;
    for (const Access& access : operation.accesses) bytes += static_cast<double>(access.range.size.count());
    return bytes / bandwidth;
  }
};
constexpr double infinite = std::numeric_limits<double>::infinity();

double step_seconds(const Plan& plan, const Simple& durations, const SimulationOptions& options = {}) {
  return simulate(plan, {.on_stream = durations}, options).step_seconds;
}

std::size_t launches_of(const Plan& plan, SegmentKind kind) {
  const std::size_t micro_batches = plan.micro_batches(0);
  if (kind == SegmentKind::middle) return micro_batches - 2;
  return kind == SegmentKind::only || kind == SegmentKind::first || kind == SegmentKind::last ||
         kind == SegmentKind::update;
}

// Returns how long the chosen operations of a step take one after the other.
template <typename Chosen>
double total(const Plan& plan, const Durations& durations, Chosen chosen) {
  double seconds = 0;
  for (const Segment& segment : plan.segments) {
    if (segment.program != 0) continue;  // steps are those of the first program
    for (const Operation& operation : segment.operations) {
      if (!chosen(operation)) continue;
      seconds += durations.on_stream(operation) * static_cast<double>(launches_of(plan, segment.kind));
    }
  }
  return seconds;
}

// A duration for each operation, by chance; some take no time at all.
class Fuzzed {
 public:
  Fuzzed(const Plan& plan, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (const Segment& segment : plan.segments) {
      for (const Operation& operation : segment.operations) {
        seconds_[&operation] = random() % 5 == 0 ? 0.0 : 0.01 + static_cast<double>(random() % 1000) / 100;
      }
    }
  }
  double operator()(const Operation& operation) const { return seconds_.at(&operation); }

 private:
  std::map<const Operation*, double> seconds_;
};

SimulationOptions fuzzed_options(const Plan& plan, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  SimulationOptions options;
  options.immediate_compute = random() % 2 == 0;
  if (random() % 2 == 0) options.sharing.processors = 0.5 * static_cast<double>(1 + random() % 4);
  if (random() % 2 == 0) options.sharing.slowdown = 1.25;
  options.sharing.one_network = random() % 2 == 0;
  if (random() % 2 == 0) {
    options.slow.push_back({.rank = random() % plan.options.ranks, .computation = 1.5, .communication = 2});
  }
  return options;
}

// So small that the naive simulation, which looks at everything all the time, takes milliseconds.
bool is_small(const Plan& plan) {
  std::size_t operations = 0;
  for (const Segment& segment : plan.segments) {
    operations += segment.operations.size() * launches_of(plan, segment.kind);
  }
  return operations * plan.options.ranks < 250;
}

TEST_CASE("simulation_agrees_with_a_naive_one_of_every_rank") {
  std::uint64_t seed = 0;
  std::size_t compared = 0;
  const std::size_t stride = tests::reduced() ? 2819 : 1409;
  for_each_nth_plan(stride, [&](const Model& model, const PlanOptions& chosen, const Plan& plan) {
    if (!is_small(plan)) return;
    INFO(model.name, ", ", describe(chosen), ", seed ", ++seed);
    const Durations durations{.on_stream = Fuzzed(plan, seed), .on_host = [](const Operation&) { return 0.125; }};
    SimulationOptions options = fuzzed_options(plan, seed);
    options.steps = 2;
    const Simulation simulation = simulate(plan, durations, options);
    // Two steps to warm up, those that are looked at, and one beside which they end.
    const std::vector<double> ends = NaiveSimulation(plan, durations, options, 5).run();
    REQUIRE(simulation.step_times.size() == 2);
    CHECK(simulation.step_times[0] == Approx(ends[2] - ends[1]).epsilon(1e-9));
    CHECK(simulation.step_times[1] == Approx(ends[3] - ends[2]).epsilon(1e-9));
    ++compared;
  });
  CHECK(compared > 10);
}

Plan with_outer_steps(std::size_t every, std::size_t fragments, const Model& model = chain_model(5)) {
  return plan_of(
      {.strategy = Strategy::hsdp, .ranks = 4, .replicas = 2, .outer_every = every, .outer_fragments = fragments},
      model);
}

// A gather and a sum of one window, each as long as what the window computes meanwhile.
TEST_CASE("collectives_that_overlap_hide_behind_their_window") {
  for (const bool overlaps : {false, true}) {
    Model model = chain_model(1);
    model.units[0].collectives = {{.name = "sum", .kind = CollectiveKind::reduce_scatter, .type = DType::fp32},
                                  {.name = "all", .type = DType::fp32}};
    for (CollectiveSpec& each : model.units[0].collectives) {
      each.elements = 8, each.forward = false, each.axes = Axis::tensor, each.overlaps = overlaps;
    }
    const Plan plan = compile(model, {.mesh = MeshShape{{Axis::tensor, 4}}});
    const auto seconds = [](const Operation& operation) {
      return operation.kind == OperationKind::window || operation.kind == OperationKind::collective ? 1.0 : 0.0;
    };
    const double windows = total(plan, {.on_stream = seconds}, computes);
    CHECK(simulate(plan, {.on_stream = seconds}).step_seconds == Approx(windows));
    CHECK(windows == (overlaps ? 6 : 4 + 2));
  }
}

TEST_CASE("simulation_agrees_with_a_naive_one_where_there_are_outer_steps") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const std::size_t fragments = 1 + seed % 2;
    INFO("seed ", seed);
    const Plan plan = with_outer_steps(4, fragments, chain_model(2));
    const Durations durations{.on_stream = Fuzzed(plan, seed), .on_host = [](const Operation&) { return 0.125; }};
    SimulationOptions options = fuzzed_options(plan, seed);
    options.outer_spacing = 1 + seed % 3;
    options.steps = 4;
    const Simulation simulation = simulate(plan, durations, options);
    const std::vector<double> ends = NaiveSimulation(plan, durations, options, 7).run();
    REQUIRE(simulation.step_times.size() == 4);
    for (std::size_t step = 0; step < 4; ++step) {
      CHECK(simulation.step_times[step] == Approx(ends[step + 2] - ends[step + 1]).epsilon(1e-9));
    }
  }
}

// Seconds of outer updates alone, which nothing hides, and of collectives of outer segments alone, which windows may.
TEST_CASE("outer_steps_add_what_they_do_not_hide_in_the_mean_over_the_steps_between_them") {
  CHECK(outer_seconds(plan_of({.ranks = 4}), {.on_stream = Simple{}}) == 0);
  for (const std::size_t every : {1, 2, 6, 50, 1000}) {
    for (const std::size_t fragments : {1, 2, 5}) {
      if (fragments > every) continue;
      INFO("every ", every, ", fragments ", fragments);
      const Plan plan = with_outer_steps(every, fragments);
      double updates = 0, moved = 0;
      for (const Segment& segment : plan.segments) {
        if (segment.kind != SegmentKind::outer) continue;
        for (const Operation& operation : segment.operations) {
          updates += operation.kind == OperationKind::outer_update;
          moved += is_collective(operation.kind);
        }
      }
      REQUIRE(updates > 0);
      REQUIRE(moved > 0);
      const auto only_updates = [](const Operation& operation) {
        return operation.kind == OperationKind::outer_update ? 1.0 : 0.0;
      };
      CHECK(outer_seconds(plan, {.on_stream = only_updates}) * static_cast<double>(every) == Approx(updates));
      const auto windows_alone = [](const Operation& operation) {
        return operation.kind == OperationKind::window ? 1.0 : 0.0;
      };
      CHECK(outer_seconds(plan, {.on_stream = windows_alone}) == Approx(0));
    }
  }
}

TEST_CASE("outer_steps_are_asked_of_plans_that_have_some") {
  CHECK_THROWS_AS(simulate(plan_of({.ranks = 4}), {.on_stream = Simple{}}, {.outer_spacing = 1}), UsageError);
}

TEST_CASE("simulation_of_every_plan_ends_with_a_path_that_adds_up_to_the_step_which_no_stream_exceeds") {
  std::uint64_t seed = 0;
  for_each_nth_plan(211, [&](const Model& model, const PlanOptions& chosen, const Plan& plan) {
    INFO(model.name, ", ", describe(chosen), ", seed ", ++seed);
    const Durations durations{.on_stream = Fuzzed(plan, seed), .on_host = [](const Operation&) { return 0.125; }};
    const Simulation simulation = simulate(plan, durations, fuzzed_options(plan, seed));
    const double window = simulation.step_seconds * static_cast<double>(simulation.window_steps);
    double along = 0, end = 0;
    for (const PathPart& part : simulation.critical_path) {
      CHECK(part.begin == Approx(end).epsilon(1e-9));
      along += part.end - part.begin;
      end = part.end;
    }
    CHECK(along == Approx(window).epsilon(1e-9));
    CHECK(end == Approx(window).epsilon(1e-9));
    const double idle = simulation.step_seconds - simulation.computing;
    CHECK(simulation.exposed_seconds() <= idle + 1e-9 * window);
    CHECK(simulation.hidden <= simulation.communicating * (1 + 1e-9));
    CHECK(sum(simulation.step_times) == Approx(window).epsilon(1e-9));
    if (seed % 2 == 0) return;
    const double step = simulate(plan, {.on_stream = durations.on_stream}).step_seconds;
    for (const StreamId stream : {StreamId::compute, StreamId::gather, StreamId::reduce}) {
      const auto on_it = [&](const Operation& operation) { return operation.stream == stream; };
      CHECK(step >= total(plan, durations, on_it) * (1 - 1e-9));
    }
  });
}

TEST_CASE("without_communication_a_step_is_the_sum_of_its_computation") {
  for (const std::size_t micro_batches : {1u, 2u, 4u}) {
    for (const Strategy strategy : flat_strategies) {
      const Plan plan = plan_of({.strategy = strategy, .micro_batches = micro_batches});
      const Durations durations{.on_stream = [](const Operation& operation) {
        return computes(operation) ? Simple{.rest = 0.25}(operation) : 0.0;
      }};
      CHECK(simulate(plan, durations).step_seconds == Approx(total(plan, durations, computes)));
      CHECK(simulate(plan, durations).exposed_seconds() == 0);
    }
  }
}

TEST_CASE("with_infinite_bandwidth_ddp_and_fsdp_differ_by_casts_alone") {
  for (const std::size_t ranks : {1u, 2u, 5u, 64u}) {
    const Plan ddp = plan_of({.strategy = Strategy::ddp, .ranks = ranks});
    const Plan fsdp = plan_of({.ranks = ranks});
    const double windows = 3 * 5;
    CHECK(step_seconds(ddp, {.bandwidth = infinite}) == Approx(windows));
    CHECK(step_seconds(fsdp, {.bandwidth = infinite}) == Approx(windows));
    const Simple casting{.bandwidth = infinite, .casts = 0.5};
    const auto casts = [&](const Plan& plan) {
      return total(plan, {.on_stream = casting}, [](const Operation& o) { return o.kind == OperationKind::cast; });
    };
    CHECK(std::abs(step_seconds(ddp, casting) - step_seconds(fsdp, casting)) <= std::max(casts(ddp), casts(fsdp)));
  }
}

TEST_CASE("prefetching_is_never_slower") {
  for (const double bandwidth : {100.0, 1000.0, 5000.0, 20000.0}) {
    for (const bool immediate : {false, true}) {
      double last = infinite;
      for (const std::size_t prefetch : {0u, 1u, 2u, 3u}) {
        const double step = step_seconds(plan_of({.ranks = 4, .prefetch = prefetch}, chain_model(8)),
                                         {.bandwidth = bandwidth}, {.immediate_compute = immediate});
        CHECK(step <= last * (1 + 1e-9));
        last = step;
      }
    }
  }
}

TEST_CASE("more_bandwidth_is_never_slower") {
  for (const Strategy strategy : all_strategies) {
    const Plan plan = plan_of({.strategy = strategy, .ranks = 6, .replicas = 2, .micro_batches = 2});
    double last = infinite;
    for (double bandwidth = 64; bandwidth < 1e6; bandwidth *= 2) {
      const double step = step_seconds(plan, {.bandwidth = bandwidth, .casts = 0.1, .rest = 0.1});
      CHECK(step <= last * (1 + 1e-9));
      last = step;
    }
    CHECK(last >= 2 * 15);
  }
}

TEST_CASE("exposed_communication_is_what_the_compute_stream_stands_still_for") {
  // One unit: its gather, its windows and its reduction follow each other, so nothing hides.
  const Plan plan = plan_of({.ranks = 2}, chain_model(1));
  const Durations durations{.on_stream = Simple{.bandwidth = 1000}};
  const Simulation simulation = simulate(plan, durations);
  const double communication =
      total(plan, durations, [](const Operation& operation) { return is_collective(operation.kind); });
  CHECK(simulation.step_seconds == Approx(3 + communication));
  CHECK(simulation.exposed_seconds() == Approx(communication));
  CHECK(simulation.computing == Approx(3));
  CHECK(simulation.communicating == Approx(communication));
  CHECK(simulation.overlap() == Approx(0));
}

TEST_CASE("collectives_wait_for_a_slow_rank_wherever_it_is") {
  const Plan plan = plan_of({.strategy = Strategy::hsdp, .ranks = 12, .replicas = 3});
  const Simple durations{.bandwidth = infinite};
  for (std::size_t rank = 0; rank < 12; ++rank) {
    CHECK(step_seconds(plan, durations, {.slow = {{.rank = rank, .computation = 1.5}}}) == Approx(1.5 * 15));
    const Simulation slow_link =
        simulate(plan, {.on_stream = Simple{.bandwidth = 100}}, {.slow = {{.rank = rank, .communication = 3}}});
    const double alike = step_seconds(plan, {.bandwidth = 100});
    CHECK(slow_link.step_seconds > alike);
    CHECK(slow_link.step_seconds <= 3 * alike * (1 + 1e-9));
    CHECK(std::any_of(slow_link.critical_path.begin(), slow_link.critical_path.end(),
                      [&](const PathPart& part) { return part.rank == rank && part.operation; }));
  }
}

TEST_CASE("jitter_is_a_function_of_its_seed_and_grows_with_the_ranks") {
  const Simple durations{.bandwidth = infinite};
  const auto mean = [&](std::size_t ranks, std::uint64_t seed) {
    return step_seconds(plan_of({.ranks = ranks}), durations,
                        {.jitter = {.deviation = 0.1, .seed = seed}, .steps = 50});
  };
  CHECK(mean(1, 1) == mean(1, 1));
  CHECK(mean(1, 1) != mean(1, 2));
  CHECK(mean(1, 1) == Approx(15).epsilon(0.05));
  CHECK(mean(16, 1) > 1.05 * mean(1, 1));
}

TEST_CASE("timelines_have_all_operations_of_each_step") {
  const Plan plan = plan_of({.ranks = 4, .micro_batches = 3});
  const Durations durations{.on_stream = Simple{}};
  const double each =
      total(plan, {.on_stream = [](const Operation&) { return 1.0; }}, [](const Operation&) { return true; });
  const Simulation simulation = simulate(plan, durations, {.steps = 3});
  for (const RankTimeline& rank : simulation.ranks) {
    std::map<std::size_t, double> counts;
    for (const TimedOperation& timed : rank.operations) counts[timed.step] += 1;
    CHECK(counts == std::map<std::size_t, double>{{0, each}, {1, each}, {2, each}});
  }
}

TEST_CASE("streams_that_share_a_processor_take_turns") {
  const Plan plan = plan_of({.strategy = Strategy::ddp, .ranks = 2, .bucket_cap = Bytes(0)});
  const Durations durations{.on_stream = Simple{.bandwidth = 20000, .casts = 0.1, .rest = 0.1}};
  const double work = total(plan, durations, [](const Operation&) { return true; });
  const double shared = simulate(plan, durations, {.sharing = {.processors = 1}}).step_seconds;
  CHECK(shared >= work * (1 - 1e-9));
  CHECK(shared > simulate(plan, durations).step_seconds);
}

// How long that takes is measured by bench/plan_speed.
TEST_CASE("a_large_job_is_simulated") {
  const Model model = chain_model(1000);
  for (const Strategy strategy : flat_strategies) {
    const Plan plan = plan_of({.strategy = strategy, .ranks = 16384}, model);
    CHECK(simulate(plan, {.on_stream = Simple{.casts = 0.1, .rest = 0.1}}).step_seconds > 3000);
  }
}

void refuses(const Durations& durations, const SimulationOptions& options, const std::string& text) {
  const Plan plan = plan_of({.ranks = 4});
  CHECK_THROWS_WITH_AS(simulate(plan, durations, options), text.c_str(), UsageError);
}

TEST_CASE("nonsense_is_one_clear_line") {
  const Durations sound{.on_stream = Simple{}};
  const auto always = [](double seconds) { return Durations{.on_stream = [=](const Operation&) { return seconds; }}; };
  refuses(always(-1), {}, "initialize scalars (segment cold, #0) cannot take -1 seconds");
  refuses(always(std::nan("")), {}, "initialize scalars (segment cold, #0) cannot take nan seconds");
  refuses(always(infinite), {}, "initialize scalars (segment cold, #0) cannot take inf seconds");
  refuses(sound, {.sharing = {.processors = 0}}, "a rank cannot compute on 0 processors");
  refuses(sound, {.sharing = {.slowdown = 0.5}},
          "a collective slows what runs beside it down 1 time or more, not 0.5 times");
  refuses(sound, {.slow = {{.rank = 4, .computation = 2}}}, "rank 4 cannot be slow: there are 4, counted from 0");
  refuses(sound, {.slow = {{.rank = 3, .computation = -2}}}, "rank 3 cannot take -2 times as long as the others");
  refuses(sound, {.jitter = {.deviation = -0.1}}, "the deviation of jitter is from 0 to 2, not -0.1");
  refuses(sound, {.steps = 1'000'000},
          "1000003 steps of 62 operations are too much to simulate: the limit is 16777216 operations");
}

}  // namespace tessera::plan::simulate_test
