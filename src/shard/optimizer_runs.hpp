// Cuts what a rank keeps of a unit into runs of equal optimizer settings: parameter groups do not end where shards do.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "tessera/plan/plan.hpp"
#include "tessera/shard/optimizer.hpp"

namespace tessera {

// Runs of one unit on `rank`, in ascending order. Padding between parameters of equal settings joins their run: it is
// zero and stays zero under any elementwise update of zeros.
std::vector<OptimizerRun> optimizer_runs(const plan::Plan& plan, std::size_t unit, std::size_t rank,
                                         const Optimizer& optimizer);

// Shell patterns with * and ?.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace tessera
