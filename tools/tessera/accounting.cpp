// In traffic every segment counts as often as a step runs it.
#include "accounting.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "models/persistent.hpp"
#include "text.hpp"

namespace tools {

using tessera::Strategy;
namespace plan = tessera::plan;
using tessera::Bytes;

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

// Accesses come in pairs, a shard and the whole, one pair for each unit. Beside the result of a window's sum may stand
// what it was rounded from.
Bytes whole_size(const plan::Plan& plan, const plan::Operation& operation) {
  if (operation.kind == plan::OperationKind::redistribute) {
    // A gather of this size sends as much.
    const plan::WholeGroup& group = plan.whole_groups[operation.whole_group];
    const std::size_t ranks = plan.mesh.size(group.axes);
    const Bytes sent = operation.goes_to_owners() ? bytes_to_owners(plan, group) : bytes_from_owners(plan, group);
    return Bytes(sent.count() * ranks / (ranks - 1));
  }
  const bool sums_in_window = operation.kind == plan::OperationKind::collective && sums(operation.collective_kind);
  if (sums_in_window || operation.passes_message() || operation.kind == plan::OperationKind::sum_tied)
    return operation.accesses.front().range.size;
  Bytes size;
  for (std::size_t move = 0; move < operation.moves(); ++move) {
    size += std::max(operation.source(move).range.size, operation.target(move).range.size);
  }
  return size;
}

using Sizes = std::map<Bytes, std::size_t>;  // how often each

bool is_message(const CollectiveSizes& collectives) {
  return collectives.kind == plan::OperationKind::collective && collectives.group == tessera::Axis::pipeline;
}

// Stages exchange norms all together, and messages and gradients two by two.
std::size_t ranks_of(const plan::Plan& plan, plan::OperationKind kind, tessera::AxisSet group) {
  if (!group.contains(tessera::Axis::pipeline)) return plan.mesh.size(group);
  return kind == plan::OperationKind::gather_norms ? plan.roles() : 2;
}

CollectiveSizes summary(CollectiveSizes result, const Sizes& sizes) {
  for (const auto& [size, times] : sizes) {
    result.count += times;
    // Wholes are shards of equal size, and messages go as they are.
    const Bytes sent = is_message(result) ? size : Bytes(size.count() / result.ranks * (result.ranks - 1));
    result.moved += sent * times;
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
  if (is_message(collectives)) return "messages to other stages";
  const std::string where = group_text(collectives.group);
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
      if (operation.kind == plan::OperationKind::transfer) {
        const bool fetches = operation.stream == plan::StreamId::fetch;
        const auto add = [&](Bytes& sum, Bytes size) { sum += Bytes((size * times).count() / every); };
        add(fetches ? result.fetched : result.evicted, whole_size(plan, operation));
        add(fetches ? result.from_disk : result.to_disk, plan::size_on_disk(plan, operation));
      }
      const bool sends = operation.passes_message() && operation.collective_kind == plan::CollectiveKind::send;
      if (times == 0 || !is_collective(operation.kind) || (operation.group.empty() && !sends)) continue;
      const tessera::AxisSet along = sends ? tessera::AxisSet(tessera::Axis::pipeline) : operation.group;
      auto& [group, sizes] = kinds[{every, operation.kind, along.bits()}];
      group = along;
      const bool twice = operation.kind == plan::OperationKind::sum_tied ||
                         (operation.kind == plan::OperationKind::collective &&
                          operation.collective_kind == plan::CollectiveKind::all_reduce);
      sizes[whole_size(plan, operation)] += twice ? 2 * times : times;  // a sum, and what it came to for all
    }
  }
  for (const auto& [key, of_group] : kinds) {
    const auto& [every, kind, bits] = key;
    const auto& [axes, sizes] = of_group;
    const tessera::AxisSet group = group_name(plan, axes);
    const CollectiveSizes& all = result.kinds.emplace_back(
        summary({.kind = kind, .group = group, .ranks = ranks_of(plan, kind, axes), .every = every}, sizes));
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
  const tessera::plan::PlanOptions options{.strategy = strategy,
                                           .precision = column.precision,
                                           .ranks = question.ranks,
                                           .replicas = question.replicas,
                                           .micro_batches = column.micro_batches};
  return question.parameters * models::persistent_per_parameter(options, question.optimizer_states);
}

double zero_paper(const ParametersQuestion& question, Strategy strategy) {
  return question.parameters * models::zero_paper_per_parameter(strategy, question.ranks, question.replicas);
}

// "2 fp32 states each", or by name where they are of several types.
std::string states_text(const std::vector<tessera::plan::StateSpec>& states) {
  std::vector<std::string> described;
  for (const tessera::plan::StateSpec& state : states) described.push_back(describe(state));
  if (described == names_of(states)) return fmt::format("{} fp32 states each", states.size());
  return fmt::format("states {} each", fmt::join(described, ", "));
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
      "{:g} parameters on {}, {}\n\n{}\n"
      "The paper: 2 bytes for a parameter, 2 for its gradient, 12 for Adam. The others are what Tessera keeps: fp32\n"
      "masters and reduced gradients, with bf16 or fp16 copies where it is mixed, for one micro-batch and for "
      "several.\n"
      "Gathered units, gradients on their way, padding and activations come on top: plan a model (--model) for "
      "those.\n",
      question.parameters, mesh_text(question.ranks, question.replicas), states_text(question.optimizer_states),
      table(rows));
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
