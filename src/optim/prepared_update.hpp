// All runs of a unit by one call of a fused kernel.
#pragma once

#include <span>
#include <vector>

#include "tessera/kernels/optimizer.hpp"
#include "tessera/shard/optimizer.hpp"

namespace tessera::optim {

template <typename Settings>
class PreparedUpdate final : public UnitUpdate {
 public:
  using Run = kernels::UpdateRun<Settings>;
  using Enqueue = void (*)(Stream&, const OptimizerSpans&, std::span<const Run>, float, const kernels::StepScalars*);

  // settings_of(group, rate) gives the settings of a run with that factor of the step's rate.
  template <typename SettingsOf>
  PreparedUpdate(std::span<const OptimizerRun> runs, const SettingsOf& settings_of, Enqueue enqueue)
      : enqueue_(enqueue) {
    for (const OptimizerRun& run : runs)
      runs_.push_back({run.first, run.count, settings_of(run.group, run.learning_rate_scale)});
  }

  void update(Stream& stream, const OptimizerSpans& unit, float learning_rate,
              const kernels::StepScalars* scalars) const final {
    if (!runs_.empty()) enqueue_(stream, unit, runs_, learning_rate, scalars);
  }

 private:
  std::vector<Run> runs_;
  Enqueue enqueue_;
};

}  // namespace tessera::optim
