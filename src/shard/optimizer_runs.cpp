// Groups by name, runs by layout.
#include "shard/optimizer_runs.hpp"

#include <algorithm>

namespace tessera {

namespace {

struct Settings {
  float learning_rate_scale;
  float weight_decay;
  friend bool operator==(const Settings&, const Settings&) = default;
};

Settings settings_of(std::string_view name, const std::vector<ParameterGroup>& groups, const Optimizer& optimizer) {
  for (const ParameterGroup& group : groups) {
    const bool member = std::any_of(group.patterns.begin(), group.patterns.end(),
                                    [&](const std::string& pattern) { return matches(pattern, name); });
    if (member) return {group.learning_rate_scale, group.weight_decay};
  }
  return {1.0f, optimizer.weight_decay()};
}

// What the rank keeps: its shard's pieces, or every parameter where they stay whole.
std::vector<plan::ShardPiece> kept_pieces(const plan::Plan& plan, std::size_t unit, std::size_t rank) {
  const plan::UnitLayout& layout = plan.layouts[unit];
  std::vector<plan::ShardPiece> result;
  if (!plan.updates_whole()) {
    for (const plan::ShardPiece& piece : layout.pieces(rank)) {
      if (layout.part(piece.parameter) == plan::Part::trained) result.push_back(piece);
    }
    return result;
  }
  for (std::size_t p = 0; p < layout.parameters(); ++p) {
    if (layout.elements(p) > 0 && layout.part(p) == plan::Part::trained)
      result.push_back({p, 0, layout.offset(p), layout.elements(p)});
  }
  return result;
}

}  // namespace

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == '*') {
    return matches(pattern.substr(1), name) || (!name.empty() && matches(pattern, name.substr(1)));
  }
  if (name.empty() || (pattern.front() != '?' && pattern.front() != name.front())) return false;
  return matches(pattern.substr(1), name.substr(1));
}

std::vector<OptimizerRun> optimizer_runs(const plan::Plan& plan, std::size_t unit, std::size_t rank,
                                         const Optimizer& optimizer) {
  const std::vector<ParameterGroup> groups = optimizer.groups();
  std::vector<OptimizerRun> runs;
  for (const plan::ShardPiece& piece : kept_pieces(plan, unit, rank)) {
    const Settings settings = settings_of(plan.units[unit].parameters[piece.parameter].name, groups, optimizer);
    const bool continues =
        !runs.empty() && Settings{runs.back().learning_rate_scale, runs.back().weight_decay} == settings;
    if (continues) {
      runs.back().count = piece.shard_offset + piece.count - runs.back().first;
    } else {
      runs.push_back({piece.shard_offset, piece.count, settings.learning_rate_scale, settings.weight_decay});
    }
  }
  return runs;
}

}  // namespace tessera
