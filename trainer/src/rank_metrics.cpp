// A rank's own time is that in which it waits for nobody: what it takes longer, all others wait.
#include "trainer/src/rank_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/trainer/gather_values.hpp"

namespace tessera::trainer {

namespace {

struct Value {
  double value;
  std::size_t rank;
};
bool is_less(const Value& a, const Value& b) { return a.value < b.value; }

// The median of an even number of ranks is the lower one in the middle: a value that some rank has.
double median(std::vector<Value> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end(), is_less);
  return middle->value;
}

template <typename Figure>
std::vector<Value> values_of(std::span<const RankFigures> ranks, const Figure& figure) {
  std::vector<Value> result;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double value = figure(ranks[rank]);
    if (!std::isnan(value)) result.push_back({value, rank});
  }
  return result;
}

void add(tools::Json& to, const char* name, const std::vector<Value>& values) {
  if (values.empty()) return;
  const auto [least, most] = std::minmax_element(values.begin(), values.end(), is_less);
  to[name] = {{"min", least->value}, {"median", median(values)}, {"max", most->value}, {"max_rank", most->rank}};
}

std::string milliseconds(double seconds) { return fmt::format("{:.3g} ms", 1e3 * seconds); }

}  // namespace

std::vector<RankFigures> gather(tessera::World& world, const RankFigures& mine) {
  return gather_value(world, mine, "figures of ranks");
}

std::vector<double> losses_by_granule(tessera::World& world, std::span<const GranuleLoss> mine, std::size_t granules) {
  std::vector<double> result(granules, 0.0);
  for (const GranuleLoss& each : gather_values(world, mine, "losses of granules")) {
    if (each.granule < granules) result[each.granule] = each.loss;
  }
  return result;
}

double mean_loss(std::span<const RankFigures> ranks) {
  double loss = 0.0, weight = 0.0;
  for (const RankFigures& rank : ranks) loss += rank.loss, weight += rank.weight;
  return loss / weight;
}

tools::Json to_json(std::span<const RankFigures> ranks) {
  tools::Json result = tools::Json::object();
  add(result, "loss", values_of(ranks, [](const RankFigures& rank) { return rank.loss / rank.weight; }));
  add(result, "step_seconds", values_of(ranks, [](const RankFigures& rank) { return rank.seconds; }));
  add(result, "waiting_seconds", values_of(ranks, [](const RankFigures& rank) { return rank.waiting; }));
  add(result, "loader_seconds", values_of(ranks, [](const RankFigures& rank) { return rank.loading; }));
  return result;
}

std::optional<std::string> SlowRank::after(std::span<const RankFigures> ranks) {
  named_.resize(ranks.size(), false);
  steps_.emplace_back(ranks.begin(), ranks.end());
  if (steps_.size() < steps_together) return std::nullopt;
  const auto steps = std::exchange(steps_, {});
  const auto median_of = [&](std::size_t rank, const auto& figure) {
    std::vector<Value> values;
    for (const auto& step : steps) values.push_back({figure(step[rank]), rank});
    return median(values);
  };
  std::vector<Value> busy;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (std::isnan(ranks[rank].waiting)) return std::nullopt;
    busy.push_back({median_of(rank, [](const RankFigures& of) { return of.seconds - of.waiting; }), rank});
  }
  const auto slowest = std::max_element(busy.begin(), busy.end(), is_less);
  const Value slow = *slowest;
  busy.erase(slowest);
  if (busy.empty() || named_[slow.rank]) return std::nullopt;
  const double others = median(busy);
  if (slow.value <= 4.0 / 3.0 * others) return std::nullopt;
  named_[slow.rank] = true;
  const double loading = median_of(slow.rank, [](const RankFigures& of) { return of.loading; });
  const bool for_samples = 2.0 * loading > slow.value - others;
  return fmt::format("rank {} is slower than the others: {} of its own in a step, where theirs is {}; {}", slow.rank,
                     milliseconds(slow.value), milliseconds(others),
                     for_samples ? fmt::format("for {} of them it waits for its samples", milliseconds(loading))
                                 : std::string("it computes for longer"));
}

}  // namespace tessera::trainer
