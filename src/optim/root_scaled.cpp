// RMSprop and Adagrad as the runtime sees them: settings around one fused kernel.
#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "optim/prepared_update.hpp"
#include "optim/settings.hpp"
#include "tessera/kernels/optimizer.hpp"
#include "tessera/optim/adagrad.hpp"
#include "tessera/optim/rmsprop.hpp"

namespace tessera {

namespace {

// Settings of either.
struct RootScaled {
  std::string_view self;  // in errors
  std::string_view name;
  kernels::RootScaledSettings kernel;
  bool centered;
  float clip_norm;
  std::vector<ParameterGroup> groups;
  std::vector<OptimizerSetting> settings;
};

void check(const RootScaled& of) {
  optim::require_not_negative({of.self, "learning_rate", of.kernel.learning_rate});
  optim::require_positive({of.self, "epsilon", of.kernel.epsilon});
  optim::require_not_negative({of.self, "weight_decay", of.kernel.weight_decay});
  optim::require_not_negative({of.self, "clip_norm", of.clip_norm});
  optim::check_groups(of.self, of.groups);
  optim::refuse_adams_settings(of.self, of.groups);
}

template <bool centered>
kernels::RootScaledSpans spans_of(const OptimizerSpans& spans) {
  constexpr std::size_t velocity = centered ? 2 : 1;
  return {.master = spans.master,
          .squares = spans.states[0],
          .mean = centered ? spans.states[1] : nullptr,
          .velocity = spans.states.size() > velocity ? spans.states[velocity] : nullptr,
          .gradient = spans.gradient,
          .count = spans.count,
          .rounded = spans.parameters};
}

template <bool centered>
void update_runs(Stream& stream, const OptimizerSpans& unit, std::span<const kernels::RootScaledRun> runs,
                 float learning_rate, const kernels::StepScalars* scalars) {
  kernels::root_scaled(stream, spans_of<centered>(unit), runs, learning_rate, scalars);
}

class RootScaledOptimizer final : public Optimizer {
 public:
  explicit RootScaledOptimizer(RootScaled of) : of_(std::move(of)) { check(of_); }

  std::string_view name() const final { return of_.name; }
  std::vector<std::string> states() const final {
    std::vector<std::string> names = {"v"};
    if (of_.centered) names.emplace_back("mean");
    if (of_.kernel.momentum != 0.0f) names.emplace_back("velocity");
    return names;
  }
  float learning_rate() const final { return of_.kernel.learning_rate; }
  float weight_decay() const final { return of_.kernel.weight_decay; }
  std::vector<ParameterGroup> groups() const final { return of_.groups; }
  std::vector<OptimizerSetting> settings() const final { return of_.settings; }
  kernels::StepSettings step_settings() const final { return {.clip_norm = of_.clip_norm}; }

  bool rounds() const final { return true; }
  bool widens() const final { return true; }
  void update(Stream& stream, const OptimizerSpans& spans, const OptimizerGroup& group,
              const kernels::StepScalars* scalars) const final {
    const kernels::RootScaledSpans own = of_.centered ? spans_of<true>(spans) : spans_of<false>(spans);
    kernels::root_scaled(stream, own, kernel_settings(group, group.learning_rate), scalars);
  }
  std::unique_ptr<UnitUpdate> prepare(std::span<const OptimizerRun> runs) const final {
    const auto settings_of = [this](const OptimizerGroup& group, float rate) { return kernel_settings(group, rate); };
    return std::make_unique<optim::PreparedUpdate<kernels::RootScaledSettings>>(
        runs, settings_of, of_.centered ? update_runs<true> : update_runs<false>);
  }

 private:
  kernels::RootScaledSettings kernel_settings(const OptimizerGroup& group, float learning_rate) const {
    kernels::RootScaledSettings settings = of_.kernel;
    settings.learning_rate = learning_rate;
    settings.weight_decay = group.weight_decay;
    settings.begun = group.begun;
    return settings;
  }

  RootScaled of_;
};

RootScaled root_scaled(const RmsProp& s) {
  constexpr std::string_view self = "RmsProp";
  optim::require_fraction({self, "alpha", s.alpha});
  optim::require_fraction({self, "momentum", s.momentum});
  return {.self = self,
          .name = "rmsprop",
          .kernel = {.learning_rate = s.learning_rate,
                     .decay = s.alpha,
                     .epsilon = s.epsilon,
                     .weight_decay = s.weight_decay,
                     .momentum = s.momentum},
          .centered = s.centered,
          .clip_norm = s.clip_norm,
          .groups = s.groups,
          .settings = {{"alpha", fmt::format("{}", s.alpha)},
                       {"epsilon", fmt::format("{}", s.epsilon)},
                       {"momentum", fmt::format("{}", s.momentum)},
                       {"centered", fmt::format("{}", s.centered)}}};
}

RootScaled root_scaled(const Adagrad& s) {
  constexpr std::string_view self = "Adagrad";
  optim::require_not_negative({self, "rate_decay", s.rate_decay});
  optim::require_not_negative({self, "initial", s.initial});
  return {.self = self,
          .name = "adagrad",
          .kernel = {.learning_rate = s.learning_rate,
                     .decay = 1.0f,
                     .epsilon = s.epsilon,
                     .weight_decay = s.weight_decay,
                     .initial = s.initial,
                     .rate_decay = s.rate_decay},
          .centered = false,
          .clip_norm = s.clip_norm,
          .groups = s.groups,
          .settings = {{"rate_decay", fmt::format("{}", s.rate_decay)},
                       {"epsilon", fmt::format("{}", s.epsilon)},
                       {"initial", fmt::format("{}", s.initial)}}};
}

}  // namespace

RmsProp::operator std::unique_ptr<Optimizer>() const {
  return std::make_unique<RootScaledOptimizer>(root_scaled(*this));
}
RmsProp::operator std::shared_ptr<const Optimizer>() const { return std::unique_ptr<Optimizer>(*this); }
Adagrad::operator std::unique_ptr<Optimizer>() const {
  return std::make_unique<RootScaledOptimizer>(root_scaled(*this));
}
Adagrad::operator std::shared_ptr<const Optimizer>() const { return std::unique_ptr<Optimizer>(*this); }

}  // namespace tessera
