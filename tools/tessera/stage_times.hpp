// The predicted time of a step in stages: of each what it computes and how long it stands still, all simulated
// together.
#pragma once

#include <string>
#include <vector>

#include "json/json.hpp"
#include "report.hpp"
#include "tessera/plan/roles.hpp"
#include "tessera/plan/simulate.hpp"
#include "time_report.hpp"

namespace tools {

struct StageTimes {
  std::size_t micro_batches;
  std::vector<tessera::plan::RankRole> roles;
  std::vector<tessera::plan::Simulation> stages;  // by role
  double tokens = 0;                              // of a step, on all ranks
  double flops = 0;                               // likewise
  double peak = 0;                                // FLOP/s of a rank; 0: not known

  std::size_t ranks() const { return roles.front().plan.job_ranks(); }
  double step() const;
  double rate() const { return tokens / step(); }  // of all ranks, per second
  double share_of_peak() const { return peak > 0 ? flops / step() / peak / static_cast<double>(ranks()) : 0; }
  // The mean over stages of the time in which they stand still, of each step.
  double idle() const;
  double bubble(std::size_t stage) const { return 1 - stages[stage].computing / step(); }
};

// Throws UsageError for what cannot be predicted.
StageTimes stage_times(const Subject& subject, const Setting& setting, const TimeSetting& time);

std::string text_of(const StageTimes& times, const TimeSetting& time);
Json json_of(const StageTimes& times, const TimeSetting& time);

// Writes a timeline like that of one plan, with the ranks of all stages.
void write_timeline(const StageTimes& times, const TimeSetting& time, const std::string& path);

}  // namespace tools
