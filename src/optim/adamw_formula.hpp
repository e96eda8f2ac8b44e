// Optimizers of AdamW's formula have its settings in common, and what of them the kernels take. They differ in how they
// keep the moments.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optim/prepared_update.hpp"
#include "optim/settings.hpp"
#include "tessera/kernels/optimizer.hpp"
#include "tessera/optim/adamw.hpp"

namespace tessera::optim {

// Settings of the same members under another name.
template <typename Settings>
AdamW as_adamw(const Settings& settings) {
  return {.learning_rate = settings.learning_rate,
          .beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .epsilon = settings.epsilon,
          .weight_decay = settings.weight_decay,
          .clip_norm = settings.clip_norm,
          .groups = settings.groups};
}

class AdamWFormula : public Optimizer {
 public:
  // `self` names the settings in errors; `coupled` as in kernels::AdamWSettings. Throws UsageError for a setting that
  // is out of range.
  AdamWFormula(AdamW settings, std::string_view self, bool coupled = false);

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
  std::unique_ptr<UnitUpdate> prepared(std::span<const OptimizerRun> runs,
                                       PreparedUpdate<kernels::AdamWSettings>::Enqueue enqueue) const;

 private:
  AdamW settings_;
  bool coupled_;
};

}  // namespace tessera::optim
