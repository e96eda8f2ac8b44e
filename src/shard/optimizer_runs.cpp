// Groups by name, runs by layout.
#include "shard/optimizer_runs.hpp"

#include <fnmatch.h>

#include <algorithm>

namespace tessera {

namespace {

ParameterGroup group_of(const std::string& name, const std::vector<ParameterGroup>& groups) {
  const auto has_it = [&](const ParameterGroup& group) {
    return std::any_of(group.patterns.begin(), group.patterns.end(),
                       [&](const std::string& pattern) { return matches(pattern, name); });
  };
  const auto group = std::find_if(groups.begin(), groups.end(), has_it);
  return group == groups.end() ? ParameterGroup{} : *group;
}

// Returns what the rank updates, as it stands there.
std::vector<plan::ShardPiece> updated_pieces(const plan::Plan& plan, std::size_t unit, std::size_t rank) {
  const plan::UnitLayout& layout = plan.layouts[unit];
  std::vector<plan::ShardPiece> pieces = layout.pieces(rank, plan.sharding(unit).optimizer);
  std::erase_if(pieces,
                [&](const plan::ShardPiece& piece) { return layout.part(piece.parameter) == plan::Part::frozen; });
  std::sort(pieces.begin(), pieces.end(),
            [](const plan::ShardPiece& a, const plan::ShardPiece& b) { return a.shard_offset < b.shard_offset; });
  return pieces;
}

bool have_equal_settings(const OptimizerRun& a, const OptimizerRun& b) {
  return a.learning_rate_scale == b.learning_rate_scale && a.group == b.group && !a.whole && !b.whole;
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::vector<OptimizerRun> optimizer_runs(const plan::Plan& plan, std::size_t unit, std::size_t rank,
                                         const Optimizer& optimizer, const std::vector<std::int64_t>& begun) {
  const std::vector<ParameterGroup> groups = optimizer.groups();
  std::vector<OptimizerRun> runs;
  for (const plan::ShardPiece& piece : updated_pieces(plan, unit, rank)) {
    const plan::ParameterSpec& parameter = plan.units[unit].parameters[piece.parameter];
    const ParameterGroup own = group_of(parameter.name, groups);
    const OptimizerRun run{.first = piece.shard_offset,
                           .count = piece.count,
                           .learning_rate_scale = own.learning_rate_scale,
                           .group = {.learning_rate = 0.0f,
                                     .weight_decay = own.weight_decay.value_or(optimizer.weight_decay()),
                                     .beta1 = own.beta1,
                                     .beta2 = own.beta2,
                                     .epsilon = own.epsilon,
                                     .begun = begun[piece.parameter]},
                           .whole = parameter.whole ? std::optional(piece.parameter) : std::nullopt};
    if (!runs.empty() && have_equal_settings(runs.back(), run)) {
      runs.back().count = run.first + run.count - runs.back().first;
    } else {
      runs.push_back(run);
    }
  }
  return runs;
}

}  // namespace tessera
