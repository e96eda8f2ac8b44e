// Checks of AdamW's settings, and what a parameter group changes of them.
#include "optim/adamw_formula.hpp"

namespace tessera::optim {

namespace {

void check_adamw(const AdamW& settings, std::string_view self) {
  require_not_negative({self, "learning_rate", settings.learning_rate});
  require_fraction({self, "beta1", settings.beta1});
  require_fraction({self, "beta2", settings.beta2});
  require_positive({self, "epsilon", settings.epsilon});
  require_not_negative({self, "weight_decay", settings.weight_decay});
  require_not_negative({self, "clip_norm", settings.clip_norm});
  check_groups(self, settings.groups);
  for (std::size_t i = 0; i < settings.groups.size(); ++i) {
    const ParameterGroup& group = settings.groups[i];
    const auto name = [&](const char* setting) { return fmt::format("groups[{}].{}", i, setting); };
    if (group.beta1) require_fraction({self, name("beta1"), *group.beta1});
    if (group.beta2) require_fraction({self, name("beta2"), *group.beta2});
    if (group.epsilon) require_positive({self, name("epsilon"), *group.epsilon});
  }
}

}  // namespace

AdamWFormula::AdamWFormula(AdamW settings, std::string_view self, bool coupled)
    : settings_(std::move(settings)), coupled_(coupled) {
  check_adamw(settings_, self);
}

std::vector<OptimizerSetting> AdamWFormula::settings() const {
  return {{"beta1", fmt::format("{}", settings_.beta1)},
          {"beta2", fmt::format("{}", settings_.beta2)},
          {"epsilon", fmt::format("{}", settings_.epsilon)}};
}

kernels::AdamWSettings AdamWFormula::kernel_settings(const OptimizerGroup& group, float learning_rate) const {
  const float beta1 = group.beta1.value_or(settings_.beta1);
  const float beta2 = group.beta2.value_or(settings_.beta2);
  return {.learning_rate = learning_rate,
          .beta1 = beta1,
          .beta2 = beta2,
          .epsilon = group.epsilon.value_or(settings_.epsilon),
          .weight_decay = group.weight_decay,
          .own_decays = group.own_decays || beta1 != settings_.beta1 || beta2 != settings_.beta2,
          .coupled = coupled_,
          .begun = group.begun};
}

std::unique_ptr<UnitUpdate> AdamWFormula::prepared(std::span<const OptimizerRun> runs,
                                                   PreparedUpdate<kernels::AdamWSettings>::Enqueue enqueue) const {
  const auto settings_of = [this](const OptimizerGroup& group, float rate) { return kernel_settings(group, rate); };
  return std::make_unique<PreparedUpdate<kernels::AdamWSettings>>(runs, settings_of, enqueue);
}

}  // namespace tessera::optim
