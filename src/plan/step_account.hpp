// A window of simulated steps is accounted for here: the path that decides its length, and what the compute stream
// waits for.
#pragma once

#include <span>
#include <vector>

#include "plan/launch_list.hpp"
#include "plan/simulated_rank.hpp"
#include "tessera/plan/simulate.hpp"

namespace tessera::plan {

struct StepWindow {
  double begin;
  double end;
  std::size_t first_step;
  std::size_t end_step;  // behind the last
};

// Fills in what each rank does and how busy the first one is; and besides that the path and what its compute stream
// waits for, which are those of ranks that all follow one plan.
void account_work(const LaunchList& list, std::span<const SimulatedRank> ranks, const StepWindow& window,
                  Simulation& result);
void account(const Plan& plan, const LaunchList& list, const std::vector<SimulatedRank>& ranks,
             const StepWindow& window, Simulation& result);

}  // namespace tessera::plan
