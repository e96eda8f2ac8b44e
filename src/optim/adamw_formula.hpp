// Optimizers of AdamW's formula have its settings in common, and what of them the kernels take. They differ in how they
// keep the moments.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optim/settings.hpp"
#include "tessera/kernels/optimizer.hpp"
#include "tessera/optim/adamw.hpp"

namespace tessera::optim {

class AdamWFormula : public Optimizer {
 public:
  // `self` names the settings in errors. Throws UsageError for one that is out of range.
  AdamWFormula(AdamW settings, std::string_view self);

  float learning_rate() const final { return settings_.learning_rate; }
  float weight_decay() const final { return settings_.weight_decay; }
  std::vector<ParameterGroup> groups() const final { return settings_.groups; }
  std::vector<OptimizerSetting> settings() const final;
  kernels::StepSettings step_settings() const final {
    return {.clip_norm = settings_.clip_norm, .decay = {settings_.beta1, settings_.beta2}};
  }
  bool rounds() const final { return true; }
  bool widens() const final { return true; }

 protected:
  kernels::AdamWSettings kernel_settings(const OptimizerGroup& group, float learning_rate) const;
  std::vector<kernels::AdamWRun> kernel_runs(std::span<const OptimizerRun> runs) const;

 private:
  AdamW settings_;
};

// Updates all runs of a unit by one call of `enqueue`.
class AdamWUpdate final : public UnitUpdate {
 public:
  using Enqueue = void (*)(Stream&, const OptimizerSpans&, std::span<const kernels::AdamWRun>, float,
                           const kernels::StepScalars*);
  AdamWUpdate(std::vector<kernels::AdamWRun> runs, Enqueue enqueue) : runs_(std::move(runs)), enqueue_(enqueue) {}

  void update(Stream& stream, const OptimizerSpans& unit, float learning_rate,
              const kernels::StepScalars* scalars) const final {
    if (!runs_.empty()) enqueue_(stream, unit, runs_, learning_rate, scalars);
  }

 private:
  std::vector<kernels::AdamWRun> runs_;
  Enqueue enqueue_;
};

}  // namespace tessera::optim
