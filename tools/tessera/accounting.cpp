// The terms of docs/numerics.md, one by one; in traffic every segment counts as often as a step runs it.
#include "accounting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "json/json.hpp"
#include "text.hpp"

namespace tools {

using tessera::AccumulationMode;
using tessera::Strategy;
namespace plan = tessera::plan;
using tessera::Bytes;

namespace {

// How much of a unit a rank has on a mesh of replicas, where it is sharded over these axes.
double share(tessera::AxisSet over, const plan::PlanOptions& options) {
  const double places = over.contains(tessera::Axis::shard) ? static_cast<double>(options.ranks / options.replicas) : 1;
  return 1.0 / (over.contains(tessera::Axis::replicate) ? places * static_cast<double>(options.replicas) : places);
}

}  // namespace

double zero_paper_bytes(double parameters, const plan::PlanOptions& options) {
  const tessera::Sharding& sharding = options.strategy.sharding;
  const auto of = [&](tessera::AxisSet over) { return share(over, options); };
  const double gradients = options.strategy == Strategy::zero1 ? 1.0 : of(sharding.gradients);
  return parameters * (2.0 * of(sharding.parameters) + 2.0 * gradients + 12.0 * of(sharding.optimizer));
}

namespace {

// Several micro-batches add up on the rank.
bool adds_up_locally(const tessera::plan::PlanOptions& options) {
  if (options.micro_batches == 1) return false;
  if (options.accumulation != AccumulationMode::automatic) return options.accumulation == AccumulationMode::local;
  return options.strategy == Strategy::ddp || options.strategy == Strategy::zero1;
}

// With outer steps each replica keeps what a job of its own ranks would.
tessera::Sharding kept_sharding(const plan::PlanOptions& options) {
  tessera::Sharding sharding = options.strategy.sharding;
  const bool several = options.replicas > 1 && options.outer_every == 0;
  for (tessera::AxisSet* over : {&sharding.parameters, &sharding.gradients, &sharding.optimizer}) {
    if (!several) *over = *over - tessera::Axis::replicate;
  }
  return sharding;
}

// Returns the bytes of an element of the reduced gradient: nobody adds anything to that of a rank that trains by
// itself.
double bytes_of_sum(const tessera::plan::PlanOptions& options) {
  const std::size_t together = options.outer_every > 0 ? options.ranks / options.replicas : options.ranks;
  const bool is_whole = kept_sharding(options).gradients.empty() || options.ranks == 1;
  const tessera::Precision& types = options.precision;
  const bool is_rounded = types.wire != types.gradient && types.wire != tessera::DType::fp32;
  if (together > 1 || !is_whole || options.micro_batches > 1 || is_rounded) return 4.0;
  return static_cast<double>(size_of(types.gradient).count());
}

// The master, and the copy that windows read where it is another.
double bytes_to_compute(const tessera::plan::PlanOptions& options) {
  const tessera::Sharding sharding = kept_sharding(options);
  const auto of = [&](tessera::AxisSet over) { return share(over, options); };
  const double parameter = static_cast<double>(size_of(options.precision.parameter).count());
  if (parameter == 4.0) return 4.0 * of(sharding.parameters);
  const bool is_cast = sharding.parameters == sharding.optimizer && !sharding.parameters.empty();
  return 4.0 * of(sharding.optimizer) + (is_cast ? 0.0 : parameter * of(sharding.parameters));
}

}  // namespace

double persistent_bytes(const Parameters& parameters, const tessera::plan::PlanOptions& options, std::size_t states) {
  const tessera::Sharding sharding = kept_sharding(options);
  const auto of = [&](tessera::AxisSet over) { return share(over, options); };
  const bool local = adds_up_locally(options);
  const bool sum_in_place = local && (options.strategy == Strategy::ddp || options.strategy == Strategy::zero1);
  // Each of several replicas has a sum of its own first.
  const tessera::AxisSet first = sharding.gradients - tessera::Axis::replicate;
  const double gradient = bytes_of_sum(options) * of(sum_in_place ? tessera::AxisSet() : first);
  const double sum = local && !sum_in_place ? 4.0 : 0.0;
  const double outer = options.outer_every > 0 ? 8.0 * of(tessera::AxisSet::all()) : 0.0;  // anchor and momentum
  const double all_states = 4.0 * static_cast<double>(states) * of(sharding.optimizer) + outer;
  return (parameters.trained + parameters.frozen) * bytes_to_compute(options) +
         parameters.trained * (gradient + sum + all_states);
}

namespace {

// How often a segment runs in a step, or, of outer ones, from one outer step to the next.
std::size_t runs_per_step(plan::SegmentKind kind, std::size_t micro_batches) {
  switch (kind) {
    case plan::SegmentKind::only:
    case plan::SegmentKind::first:
    case plan::SegmentKind::last:
    case plan::SegmentKind::outer:
    case plan::SegmentKind::update: return 1;
    case plan::SegmentKind::middle: return micro_batches - 2;
    default: return 0;
  }
}

// Accesses come in pairs, a shard and the whole, one pair for each unit.
Bytes whole_size(const plan::Operation& operation) {
  Bytes size;
  for (std::size_t move = 0; move < operation.moves(); ++move) {
    size += std::max(operation.source(move).range.size, operation.target(move).range.size);
  }
  return size;
}

using Sizes = std::map<Bytes, std::size_t>;  // how often each

CollectiveSizes summary(CollectiveSizes result, const Sizes& sizes) {
  for (const auto& [size, times] : sizes) {
    result.count += times;
    // Wholes are shards of equal size.
    result.moved += Bytes(size.count() / result.ranks * (result.ranks - 1)) * times;
  }
  result.moved = Bytes(result.moved.count() / result.every);
  result.smallest = sizes.begin()->first;
  result.largest = sizes.rbegin()->first;
  std::size_t before = 0;
  for (const auto& [size, times] : sizes) {
    if (before <= (result.count - 1) / 2) result.median = size;
    before += times;
  }
  return result;
}

}  // namespace

std::string name_of(const CollectiveSizes& collectives) {
  const std::string_view where = collectives.group == tessera::Axis::shard       ? " inside replicas"
                                 : collectives.group == tessera::Axis::replicate ? " across replicas"
                                                                                 : "";
  const std::string when = collectives.every == 1 ? "" : fmt::format(", every {} steps", collectives.every);
  return fmt::format("{}{}{}", to_string(collectives.kind), where, when);
}

tessera::AxisSet group_name(const plan::Plan& plan, tessera::AxisSet group) {
  return group == plan.mesh.group(plan.mesh.axes()) ? tessera::AxisSet::all() : group;
}

Traffic traffic(const plan::Plan& plan) {
  Traffic result;
  std::map<std::tuple<std::size_t, plan::OperationKind, unsigned>, std::pair<tessera::AxisSet, Sizes>> kinds;
  for (const plan::Segment& segment : plan.segments) {
    const std::size_t every = segment.kind == plan::SegmentKind::outer ? plan.options.outer_every : 1;
    const bool of_program = segment.program != plan::no_program;
    const std::size_t times = runs_per_step(segment.kind, of_program ? plan.micro_batches(segment.program) : 1);
    for (const plan::Operation& operation : segment.operations) {
      if (times == 0 || !is_collective(operation.kind) || operation.group.empty()) continue;
      auto& [group, sizes] = kinds[{every, operation.kind, operation.group.bits()}];
      group = operation.group;
      sizes[whole_size(operation)] += times;
    }
  }
  for (const auto& [key, of_group] : kinds) {
    const auto& [every, kind, bits] = key;
    const auto& [axes, sizes] = of_group;
    const tessera::AxisSet group = group_name(plan, axes);
    const CollectiveSizes& all = result.kinds.emplace_back(
        summary({.kind = kind, .group = group, .ranks = plan.mesh.size(axes), .every = every}, sizes));
    result.moved += all.moved;
    if (group == tessera::Axis::shard) result.moved_in_replica += all.moved;
  }
  return result;
}

std::span<const Strategy> strategies_on(const plan::PlanOptions& options) {
  const bool by_themselves = options.outer_every > 0;  // each replica as a job of its own: hsdp is fsdp
  if (options.replicas == 1 || by_themselves) return tessera::flat_strategies;
  return tessera::all_strategies;
}

namespace {

struct Column {
  const char* name;
  const char* key;
  tessera::Precision precision;
  std::size_t micro_batches;
};
constexpr Column columns[] = {{"fp32", "fp32", tessera::fp32_precision, 1},
                              {"mixed", "mixed", tessera::bf16_mixed, 1},
                              {"fp32, accumulating", "fp32_accumulating", tessera::fp32_precision, 2},
                              {"mixed, accumulating", "mixed_accumulating", tessera::bf16_mixed, 2}};

double persistent(const ParametersQuestion& question, Strategy strategy, const Column& column) {
  tessera::plan::PlanOptions options;
  options.strategy = strategy;
  options.precision = column.precision;
  options.ranks = question.ranks;
  options.replicas = question.replicas;
  options.micro_batches = column.micro_batches;
  return persistent_bytes({question.parameters}, options, question.optimizer_states);
}

double zero_paper(const ParametersQuestion& question, Strategy strategy) {
  return zero_paper_bytes(question.parameters,
                          {.strategy = strategy, .ranks = question.ranks, .replicas = question.replicas});
}

}  // namespace

std::string text_of(const ParametersQuestion& question) {
  std::vector<std::vector<std::string>> rows = {{"on each rank", "the ZeRO paper"}};
  for (const Column& column : columns) rows.front().emplace_back(column.name);
  for (const Strategy strategy : strategies_on({.replicas = question.replicas})) {
    auto& cells = rows.emplace_back();
    cells.emplace_back(to_string(strategy));
    cells.push_back(decimal_size(zero_paper(question, strategy)));
    for (const Column& column : columns) cells.push_back(decimal_size(persistent(question, strategy, column)));
  }
  return fmt::format(
      "{:g} parameters on {}, {} fp32 states each\n\n{}\n"
      "The paper: 2 bytes for a parameter, 2 for its gradient, 12 for Adam. The others are what Tessera keeps: fp32\n"
      "masters and reduced gradients, with bf16 or fp16 copies where it is mixed, for one micro-batch and for "
      "several.\n"
      "Gathered units, gradients on their way, padding and activations come on top: plan a model (--model) for "
      "those.\n",
      question.parameters, mesh_text(question.ranks, question.replicas), question.optimizer_states, table(rows));
}

Json json_of(const ParametersQuestion& question) {
  Json strategies;
  for (const Strategy strategy : strategies_on({.replicas = question.replicas})) {
    Json bytes = {{"zero_paper", zero_paper(question, strategy)}};
    for (const Column& column : columns) bytes[column.key] = persistent(question, strategy, column);
    strategies[std::string(to_string(strategy))] = bytes;
  }
  return {{"parameters", question.parameters},
          {"ranks", question.ranks},
          {"replicas", question.replicas},
          {"bytes", strategies}};
}

}  // namespace tools
