// How long it takes to compile, to verify and to simulate a plan, over forms of programs, units, ranks, strategies,
// types and micro-batches: processor time of the one thread, the least of several runs, which others on the machine
// disturb least.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <functional>
#include <limits>
#include <vector>

#include "measure/program.hpp"
#include "models/model.hpp"
#include "tessera/plan/compile.hpp"
#include "tessera/plan/simulate.hpp"
#include "tessera/plan/verify.hpp"

namespace {

using namespace tessera;

constexpr std::size_t width = 256;

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

// ---- forms of programs ----

// Levels of a U-Net, so many inside each other, as many times as there are units for.
plan::Program nested(std::size_t units, std::size_t levels) {
  using enum plan::WindowKind;
  plan::Program program;
  const auto there_and_back = [&](std::size_t first, plan::WindowKind kind) {
    const std::size_t end = std::min(first + levels, units);
    auto& windows = kind == evaluate ? program.evaluation : program.micro_batch;
    for (std::size_t unit = first; unit < end; ++unit) windows.push_back({unit, kind});
    for (std::size_t unit = end - 1; unit > first; --unit) windows.push_back({unit - 1, kind, true});
  };
  std::vector<std::size_t> outermost;
  for (std::size_t unit = 0; unit < units; unit += levels) outermost.push_back(unit);
  for (const plan::WindowKind kind : {forward, evaluate}) {
    for (const std::size_t unit : outermost) there_and_back(unit, kind);
  }
  std::reverse(outermost.begin(), outermost.end());
  for (const std::size_t unit : outermost) there_and_back(unit, backward);
  return program;
}

// Each goes through all units, and trains one in so many.
std::vector<plan::Program> several(std::size_t units, std::size_t count) {
  std::vector<plan::Program> programs;
  for (std::size_t index = 0; index < count; ++index) {
    plan::Program program = plan::Program::chain(units);
    program.name = fmt::format("program {}", index);
    program.trains.emplace();
    for (std::size_t unit = index; unit < units; unit += count) program.trains->push_back(unit);
    programs.push_back(std::move(program));
  }
  return programs;
}

struct Form {
  const char* name;
  std::vector<plan::Program> (*programs)(std::size_t units);
};
constexpr Form chain{"chain", [](std::size_t units) { return std::vector{plan::Program::chain(units)}; }};
constexpr Form other_forms[] = {
    {"two programs", [](std::size_t units) { return several(units, 2); }},
    {"three programs", [](std::size_t units) { return several(units, 3); }},
    {"two in each other", [](std::size_t units) { return std::vector{nested(units, 2)}; }},
    {"eight in each other", [](std::size_t units) { return std::vector{nested(units, 8)}; }},
    {"32 in each other", [](std::size_t units) { return std::vector{nested(units, 32)}; }},
};

// ---- measuring ----

void measure(const char* form, const plan::CompileInput& input, int runs) {
  plan::Plan plan;
  bool sound = true;
  const double compiled = least_milliseconds(runs, [&] { plan = compile(input); });
  const double verified = least_milliseconds(runs, [&] { sound = sound && verify(plan).ok(); });
  // Operations take equal times, collectives longer ones: the length of a step is of no interest here.
  const plan::Durations durations{
      .on_stream = [](const plan::Operation& operation) { return is_collective(operation.kind) ? 3e-3 : 1e-3; }};
  const double simulated = least_milliseconds(runs, [&] { simulate(plan, durations); });
  fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} | {:.1f} | {:.1f} | {:.1f} |{}\n", form, input.units.size(),
             input.options.ranks, input.options.replicas, to_string(input.options.strategy),
             to_string(input.options.precision.parameter), input.options.micro_batches, operations(plan), compiled,
             verified, simulated, sound ? "" : " NOT SOUND");
}

struct Ranks {
  std::size_t all;
  std::size_t replicas;
};

void measure_all(const Form& form, std::size_t units, const Ranks& ranks, int runs) {
  models::Model model = models::perceptron(std::vector<std::size_t>(units + 1, width));
  const plan::PlanOptions options{.ranks = ranks.all, .replicas = ranks.replicas};
  plan::CompileInput input{std::move(model.units), form.programs(units), options, {"m", "v"}};
  for (const Strategy strategy : all_strategies) {
    if (ranks.replicas == 1 && is_hybrid(strategy)) continue;
    for (const Precision& precision : {fp32_precision, bf16_mixed}) {
      for (const std::size_t micro_batches : {1u, 4u}) {
        input.options.strategy = strategy;
        input.options.precision = precision;
        input.options.micro_batches = micro_batches;
        measure(form.name, input, runs);
      }
    }
  }
}

void measure_all(int runs) {
  fmt::print("plan_speed {}: milliseconds of processor time on one thread, the least of {} runs\n\n", runs, runs);
  fmt::print(
      "| program | units | ranks | replicas | strategy | parameters | micro-batches | operations | compile | verify "
      "| simulate |\n");
  fmt::print("|---|--:|--:|--:|---|---|--:|--:|--:|--:|--:|\n");
  for (const std::size_t units : {10u, 100u, 1000u}) {
    for (const Ranks& ranks : {Ranks{8, 1}, Ranks{16384, 1}, Ranks{16384, 2048}}) {
      measure_all(chain, units, ranks, runs);
    }
  }
  for (const Form& form : other_forms) measure_all(form, 1000, {16384, 2048}, runs);
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t runs = 5;
  tessera::trainer::CommandLine line(
      "How long it takes to compile, to verify and to simulate a plan: processor time, over forms of programs, units, "
      "ranks, strategies, types and micro-batches.",
      "Example: plan_speed 3");
  line.whole("RUNS", runs, {1, 1000}, "Of each, the least of which counts");
  return bench::run_bench(line, argc, argv, [&] { measure_all(static_cast<int>(runs)); });
}
