// Cuts what a rank keeps of a unit into runs of equal optimizer settings: parameter groups do not end where shards do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/plan.hpp"
#include "tessera/shard/optimizer.hpp"

namespace tessera {

// Runs of one unit on `rank`, in ascending order. Padding between parameters of equal settings joins their run: it is
// zero and stays zero under any elementwise update of zeros. A tensor that the optimizer sees whole has a run of its
// own. `begun`: OptimizerGroup's, by parameter of the unit.
std::vector<OptimizerRun> optimizer_runs(const plan::Plan& plan, std::size_t unit, std::size_t rank,
                                         const Optimizer& optimizer, const std::vector<std::int64_t>& begun);

// Whether a shell pattern of a parameter group matches a name.
bool matches(const std::string& pattern, const std::string& name);

}  // namespace tessera
