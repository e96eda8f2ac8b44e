// AdamW as the runtime sees it: settings around the fused kernel.
#include "tessera/optim/adamw.hpp"

#include <fmt/format.h>

#include <span>
#include <utility>
#include <vector>

#include "optim/settings.hpp"
#include "tessera/kernels/optimizer.hpp"

namespace tessera {

namespace {

void check(const AdamW& settings) {
  constexpr std::string_view self = "AdamW";
  optim::require_not_negative({self, "learning_rate", settings.learning_rate});
  optim::require_fraction({self, "beta1", settings.beta1});
  optim::require_fraction({self, "beta2", settings.beta2});
  optim::require_positive({self, "epsilon", settings.epsilon});
  optim::require_not_negative({self, "weight_decay", settings.weight_decay});
  optim::require_not_negative({self, "clip_norm", settings.clip_norm});
  optim::check_groups(self, settings.groups);
  for (std::size_t i = 0; i < settings.groups.size(); ++i) {
    const ParameterGroup& group = settings.groups[i];
    const auto name = [&](const char* setting) { return fmt::format("groups[{}].{}", i, setting); };
    if (group.beta1) optim::require_fraction({self, name("beta1"), *group.beta1});
    if (group.beta2) optim::require_fraction({self, name("beta2"), *group.beta2});
    if (group.epsilon) optim::require_positive({self, name("epsilon"), *group.epsilon});
  }
}

kernels::AdamWSpans adamw_spans(const OptimizerSpans& spans) {
  return {.master = spans.master,
          .first_moment = spans.states[0],
          .second_moment = spans.states[1],
          .gradient = spans.gradient,
          .count = spans.count,
          .rounded = spans.parameters};
}

class AdamWUpdate final : public UnitUpdate {
 public:
  explicit AdamWUpdate(std::vector<kernels::AdamWRun> runs) : runs_(std::move(runs)) {}

  void update(Stream& stream, const OptimizerSpans& unit, float learning_rate,
              const kernels::StepScalars* scalars) const final {
    if (!runs_.empty()) kernels::adamw(stream, adamw_spans(unit), runs_, learning_rate, scalars);
  }

 private:
  std::vector<kernels::AdamWRun> runs_;
};

class AdamWOptimizer final : public Optimizer {
 public:
  explicit AdamWOptimizer(const AdamW& settings) : settings_(settings) { check(settings_); }

  std::string_view name() const final { return "adamw"; }
  std::vector<std::string> states() const final { return {"m", "v"}; }
  float learning_rate() const final { return settings_.learning_rate; }
  float weight_decay() const final { return settings_.weight_decay; }
  std::vector<ParameterGroup> groups() const final { return settings_.groups; }
  std::vector<OptimizerSetting> settings() const final {
    return {{"beta1", fmt::format("{}", settings_.beta1)},
            {"beta2", fmt::format("{}", settings_.beta2)},
            {"epsilon", fmt::format("{}", settings_.epsilon)}};
  }
  kernels::StepSettings step_settings() const final {
    return {.clip_norm = settings_.clip_norm, .decay = {settings_.beta1, settings_.beta2}};
  }

  bool rounds() const final { return true; }
  bool widens() const final { return true; }
  void update(Stream& stream, const OptimizerSpans& spans, const OptimizerGroup& group,
              const kernels::StepScalars* scalars) const final {
    kernels::adamw(stream, adamw_spans(spans), kernel_settings(group, group.learning_rate), scalars);
  }
  std::unique_ptr<UnitUpdate> prepare(std::span<const OptimizerRun> runs) const final {
    std::vector<kernels::AdamWRun> prepared;
    for (const OptimizerRun& run : runs) {
      prepared.push_back({run.first, run.count, kernel_settings(run.group, run.learning_rate_scale)});
    }
    return std::make_unique<AdamWUpdate>(std::move(prepared));
  }

 private:
  kernels::AdamWSettings kernel_settings(const OptimizerGroup& group, float learning_rate) const {
    const float beta1 = group.beta1.value_or(settings_.beta1);
    const float beta2 = group.beta2.value_or(settings_.beta2);
    return {.learning_rate = learning_rate,
            .beta1 = beta1,
            .beta2 = beta2,
            .epsilon = group.epsilon.value_or(settings_.epsilon),
            .weight_decay = group.weight_decay,
            .own_decays = group.own_decays || beta1 != settings_.beta1 || beta2 != settings_.beta2,
            .begun = group.begun};
  }

  AdamW settings_;
};

}  // namespace

AdamW::operator std::shared_ptr<const Optimizer>() const { return std::unique_ptr<Optimizer>(*this); }
AdamW::operator std::unique_ptr<Optimizer>() const { return std::make_unique<AdamWOptimizer>(*this); }

}  // namespace tessera
