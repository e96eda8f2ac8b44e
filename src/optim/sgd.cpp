// SGD as the runtime sees it: settings around the fused kernel.
#include "tessera/optim/sgd.hpp"

#include <fmt/format.h>

#include <span>

#include "optim/prepared_update.hpp"
#include "optim/settings.hpp"
#include "tessera/base/error.hpp"
#include "tessera/kernels/optimizer.hpp"

namespace tessera {

namespace {

void check(const Sgd& settings) {
  constexpr std::string_view self = "Sgd";
  optim::require_not_negative({self, "learning_rate", settings.learning_rate});
  optim::require_fraction({self, "momentum", settings.momentum});
  optim::require_fraction({self, "dampening", settings.dampening});
  optim::require_not_negative({self, "weight_decay", settings.weight_decay});
  optim::require_not_negative({self, "clip_norm", settings.clip_norm});
  optim::check_groups(self, settings.groups);
  optim::refuse_adams_settings(self, settings.groups);
  if (settings.momentum == 0.0f && (settings.nesterov || settings.dampening != 0.0f)) {
    throw UsageError(
        fmt::format("Sgd: {} needs momentum above 0, but it is 0", settings.nesterov ? "nesterov" : "dampening"));
  }
  if (settings.nesterov && settings.dampening != 0.0f)
    throw UsageError(fmt::format("Sgd: nesterov needs a dampening of 0, but it is {}", settings.dampening));
}

kernels::SgdSpans sgd_spans(const OptimizerSpans& spans) {
  return {.master = spans.master,
          .velocity = spans.states.empty() ? nullptr : spans.states[0],
          .gradient = spans.gradient,
          .count = spans.count,
          .rounded = spans.parameters};
}

void update_sgd(Stream& stream, const OptimizerSpans& unit, std::span<const kernels::SgdRun> runs, float learning_rate,
                const kernels::StepScalars* scalars) {
  kernels::sgd(stream, sgd_spans(unit), runs, learning_rate, scalars);
}

class SgdOptimizer final : public Optimizer {
 public:
  explicit SgdOptimizer(const Sgd& settings) : settings_(settings) { check(settings_); }

  std::string_view name() const final { return "sgd"; }
  std::vector<std::string> states() const final {
    return keeps_velocity() ? std::vector<std::string>{"velocity"} : std::vector<std::string>{};
  }
  float learning_rate() const final { return settings_.learning_rate; }
  float weight_decay() const final { return settings_.weight_decay; }
  std::vector<ParameterGroup> groups() const final { return settings_.groups; }
  std::vector<OptimizerSetting> settings() const final {
    return {{"momentum", fmt::format("{}", settings_.momentum)},
            {"nesterov", fmt::format("{}", settings_.nesterov)},
            {"dampening", fmt::format("{}", settings_.dampening)}};
  }
  kernels::StepSettings step_settings() const final { return {.clip_norm = settings_.clip_norm}; }

  bool rounds() const final { return true; }
  bool widens() const final { return true; }
  void update(Stream& stream, const OptimizerSpans& spans, const OptimizerGroup& group,
              const kernels::StepScalars* scalars) const final {
    kernels::sgd(stream, sgd_spans(spans), kernel_settings(group, group.learning_rate), scalars);
  }
  std::unique_ptr<UnitUpdate> prepare(std::span<const OptimizerRun> runs) const final {
    const auto settings_of = [this](const OptimizerGroup& group, float rate) { return kernel_settings(group, rate); };
    return std::make_unique<optim::PreparedUpdate<kernels::SgdSettings>>(runs, settings_of, update_sgd);
  }

 private:
  kernels::SgdSettings kernel_settings(const OptimizerGroup& group, float learning_rate) const {
    return {.learning_rate = learning_rate,
            .momentum = settings_.momentum,
            .weight_decay = group.weight_decay,
            .nesterov = settings_.nesterov,
            .dampening = settings_.dampening,
            .begun = group.begun};
  }
  bool keeps_velocity() const { return settings_.momentum != 0.0f; }

  Sgd settings_;
};

}  // namespace

Sgd::operator std::shared_ptr<const Optimizer>() const { return std::unique_ptr<Optimizer>(*this); }
Sgd::operator std::unique_ptr<Optimizer>() const { return std::make_unique<SgdOptimizer>(*this); }

}  // namespace tessera
