// --metrics-per-rank adds these: how a step went on each rank, in few numbers, and which rank keeps the others waiting.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "json/json.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/trainer/step_metrics.hpp"

namespace tessera::trainer {

// Returns every rank's figures, in rank order. Collective.
std::vector<RankFigures> gather(tessera::World& world, const RankFigures& mine);

// The loss of a granule that this rank has computed; of one beyond the last: none.
struct GranuleLoss {
  std::size_t granule = 0;
  double loss = 0.0;
};

// Returns the losses of all ranks' granules by their number; `mine` is as long on every rank. Collective.
std::vector<double> losses_by_granule(tessera::World& world, std::span<const GranuleLoss> mine, std::size_t granules);

// World::mean of the losses, with the same bits.
double mean_loss(std::span<const RankFigures> ranks);

// {"loss": {"min", "median", "max", "max_rank"}, "step_seconds": …, "waiting_seconds": …, "loader_seconds": …}; what no
// rank has is left out.
tools::Json to_json(std::span<const RankFigures> ranks);

// Finds the rank that is slower than the others by more than a third, by the medians of some steps: a step in which a
// rank had no processor does not count.
class SlowRank {
 public:
  static constexpr std::size_t steps_together = 20;

  // Called after each step; returns what is to be said of such a rank, once for each.
  std::optional<std::string> after(std::span<const RankFigures> ranks);

 private:
  std::vector<std::vector<RankFigures>> steps_;  // of late, and in each the ranks
  std::vector<bool> named_;
};

}  // namespace tessera::trainer
