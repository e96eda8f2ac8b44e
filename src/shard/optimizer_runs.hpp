// Cuts what a rank keeps of a unit into runs of equal optimizer settings: parameter groups do not end where shards do.
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>
#include <vector>

#include "tessera/plan/plan.hpp"
#include "tessera/shard/optimizer.hpp"

namespace tessera {

struct RunSettings {
  float learning_rate_scale;
  OptimizerGroup group;  // its learning rate is set by each step
  friend bool operator==(const RunSettings& a, const RunSettings& b) {
    const auto all = [](const RunSettings& s) {
      return std::tuple(s.learning_rate_scale, s.group.weight_decay, s.group.beta1, s.group.beta2, s.group.epsilon);
    };
    return all(a) == all(b);
  }
};

struct OptimizerRun {
  std::size_t first;  // element of the kept buffer
  std::size_t count;
  RunSettings settings;
};

// Runs of one unit on `rank`, in ascending order. Padding between parameters of equal settings joins their run: it is
// zero and stays zero under any elementwise update of zeros.
std::vector<OptimizerRun> optimizer_runs(const plan::Plan& plan, std::size_t unit, std::size_t rank,
                                         const Optimizer& optimizer);

// Shell patterns with * and ?.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace tessera
