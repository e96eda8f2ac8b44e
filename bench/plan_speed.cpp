// How long it takes to compile, to verify and to simulate a plan, over units, ranks, strategies, types and
// micro-batches: processor time of the one thread, the least of several runs, which others on the machine disturb
// least. Usage: plan_speed [RUNS]
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <vector>

#include "models/model.hpp"
#include "tessera/plan/compile.hpp"
#include "tessera/plan/simulate.hpp"
#include "tessera/plan/verify.hpp"

namespace {

using namespace tessera;

constexpr std::size_t width = 256;
constexpr int most_runs = 1000;

double least_milliseconds(int runs, const std::function<void()>& body) {
  double least = std::numeric_limits<double>::infinity();
  for (int run = 0; run < runs; ++run) {
    const std::clock_t start = std::clock();
    body();
    least = std::min(least, 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return least;
}

std::size_t operations(const plan::Plan& plan) {
  std::size_t count = 0;
  for (const plan::Segment& segment : plan.segments) count += segment.operations.size();
  return count;
}

void measure(const plan::CompileInput& input, int runs) {
  plan::Plan plan;
  bool sound = true;
  const double compiled = least_milliseconds(runs, [&] { plan = compile(input); });
  const double verified = least_milliseconds(runs, [&] { sound = sound && verify(plan).ok(); });
  // Of equal operations, but that collectives take longer: what a step takes is of no interest here.
  const plan::Durations durations{
      .on_stream = [](const plan::Operation& operation) { return is_collective(operation.kind) ? 3e-3 : 1e-3; }};
  const double simulated = least_milliseconds(runs, [&] { simulate(plan, durations); });
  fmt::print("| {} | {} | {} | {} | {} | {} | {} | {:.1f} | {:.1f} | {:.1f} |{}\n", input.units.size(),
             input.options.ranks, input.options.replicas, to_string(input.options.strategy),
             to_string(input.options.precision.parameter), input.options.micro_batches, operations(plan), compiled,
             verified, simulated, sound ? "" : " NOT SOUND");
}

struct Ranks {
  std::size_t all;
  std::size_t replicas;
};

void measure_all(std::size_t units, const Ranks& ranks, int runs) {
  models::Model model = models::perceptron(std::vector<std::size_t>(units + 1, width));
  const plan::PlanOptions options{.ranks = ranks.all, .replicas = ranks.replicas};
  plan::CompileInput input{std::move(model.units), {std::move(model.program)}, options, {"m", "v"}};
  for (const Strategy strategy : all_strategies) {
    const bool is_hybrid = strategy == Strategy::hsdp || strategy == Strategy::hfsdp;
    if (ranks.replicas == 1 && is_hybrid) continue;
    for (const Precision& precision : {fp32_precision, bf16_mixed}) {
      for (const std::size_t micro_batches : {1u, 4u}) {
        input.options.strategy = strategy;
        input.options.precision = precision;
        input.options.micro_batches = micro_batches;
        measure(input, runs);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int runs = 5;
  if (argc > 1) {
    const auto [end, error] = std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), runs);
    if (argc > 2 || error != std::errc() || *end != '\0' || runs < 1 || runs > most_runs) {
      fmt::print(stderr, "usage: plan_speed [RUNS], from 1 to {}\n", most_runs);
      return 2;
    }
  }
  fmt::print("plan_speed {}: milliseconds of processor time on one thread, the least of {} runs\n\n", runs, runs);
  fmt::print(
      "| units | ranks | replicas | strategy | parameters | micro-batches | operations | compile | verify | simulate "
      "|\n");
  fmt::print("|--:|--:|--:|---|---|--:|--:|--:|--:|--:|\n");
  for (const std::size_t units : {10u, 100u, 1000u}) {
    for (const Ranks& ranks : {Ranks{8, 1}, Ranks{16384, 1}, Ranks{16384, 2048}}) measure_all(units, ranks, runs);
  }
  return 0;
}
