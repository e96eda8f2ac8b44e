// A window of simulated steps is accounted for here: the path that decides its length, and what the compute stream
// waits for.
#pragma once

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

// Fills in everything but the times of steps.
void account(const Plan& plan, const LaunchList& list, const std::vector<SimulatedRank>& ranks,
             const StepWindow& window, Simulation& result);

}  // namespace tessera::plan
