// Checks the input, then: layout, buffers, operations, waits.
#include "tessera/plan/compile.hpp"

#include <fmt/format.h>

#include <set>

#include "plan/buffers.hpp"
#include "plan/emit.hpp"
#include "plan/waits.hpp"
#include "tessera/base/error.hpp"

namespace tessera::plan {

namespace {

void check_names(const std::vector<UnitSpec>& units) {
  std::set<std::string_view> unit_names;
  std::set<std::string_view> parameter_names;
  for (const UnitSpec& unit : units) {
    if (!unit_names.insert(unit.name).second) {
      throw UsageError(fmt::format("two units have the name \"{}\": give each its own", unit.name));
    }
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter_names.insert(parameter.name).second) continue;
      throw UsageError(fmt::format("two parameters have the name \"{}\": give each its own", parameter.name));
    }
  }
}

void check_precision(const Precision& precision) {
  if (precision.wire == precision.gradient) return;
  throw UsageError(
      fmt::format("precision: gradients in {} cannot travel as {}: this version reduces what the backward "
                  "pass wrote, so set both to the same type",
                  to_string(precision.gradient), to_string(precision.wire)));
}

// Far above any machine, and low enough that no product of sizes overflows.
constexpr std::size_t most_ranks = std::size_t{1} << 20;
constexpr std::size_t most_micro_batches = std::size_t{1} << 20;
constexpr std::size_t most_elements = std::size_t{1} << 48;

void check_sizes(const CompileInput& input) {
  if (input.options.ranks == 0) throw UsageError("a plan needs at least one rank");
  if (input.options.ranks > most_ranks) {
    throw UsageError(fmt::format("{} ranks: a plan is for at most {}", input.options.ranks, most_ranks));
  }
  if (input.options.micro_batches == 0 || input.options.micro_batches > most_micro_batches) {
    throw UsageError(
        fmt::format("micro_batches is {}: choose 1 to {}", input.options.micro_batches, most_micro_batches));
  }
  std::size_t elements = 0;
  for (const UnitSpec& unit : input.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const std::size_t count = element_count(parameter.shape);
      if (count <= most_elements - elements) {
        elements += count;
        continue;
      }
      throw UsageError(fmt::format("parameter \"{}\" of shape {} brings the model above {} elements", parameter.name,
                                   tessera::to_string(parameter.shape), most_elements));
    }
  }
}

void check_input(const CompileInput& input) {
  if (input.units.empty()) throw UsageError("the model has no units: add at least one before finalize()");
  check_sizes(input);
  check_names(input.units);
  check_precision(input.options.precision);
  check(input.program, input.units.size());
}

AccumulationMode resolve(const PlanOptions& options) {
  if (options.micro_batches == 1) return AccumulationMode::reduced;
  if (options.accumulation != AccumulationMode::automatic) return options.accumulation;
  const bool sums_stay_whole = options.strategy == Strategy::ddp || options.strategy == Strategy::zero1;
  return sums_stay_whole ? AccumulationMode::local : AccumulationMode::reduced;
}

}  // namespace

Plan compile(const CompileInput& input) {
  check_input(input);
  Plan plan;
  plan.options = input.options;
  plan.options.accumulation = resolve(input.options);
  plan.program = input.program;
  plan.units = input.units;
  plan.optimizer_states = input.optimizer_states;
  for (const UnitSpec& unit : input.units) plan.layouts.emplace_back(unit, input.options.ranks);
  make_buffers(plan);
  emit_segments(plan);
  derive_waits(plan);
  return plan;
}

}  // namespace tessera::plan
