// AdamW as the runtime sees it: settings around the fused kernel.
#include "tessera/optim/adamw.hpp"

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
}

class AdamWOptimizer final : public Optimizer {
 public:
  explicit AdamWOptimizer(const AdamW& settings) : settings_(settings) { check(settings_); }

  std::string_view name() const final { return "adamw"; }
  std::vector<std::string> states() const final { return {"m", "v"}; }
  float learning_rate() const final { return settings_.learning_rate; }
  float weight_decay() const final { return settings_.weight_decay; }
  std::vector<ParameterGroup> groups() const final { return settings_.groups; }
  kernels::StepSettings step_settings() const final {
    return {.clip_norm = settings_.clip_norm, .decay = {settings_.beta1, settings_.beta2}};
  }

  void update(Stream& stream, const OptimizerSpans& spans, const OptimizerGroup& group,
              const kernels::StepScalars* scalars) const final {
    kernels::adamw(stream,
                   {.master = spans.master,
                    .first_moment = spans.states[0],
                    .second_moment = spans.states[1],
                    .gradient = spans.gradient,
                    .count = spans.count},
                   {.learning_rate = group.learning_rate,
                    .beta1 = settings_.beta1,
                    .beta2 = settings_.beta2,
                    .epsilon = settings_.epsilon,
                    .weight_decay = group.weight_decay},
                   scalars);
  }

 private:
  AdamW settings_;
};

}  // namespace

AdamW::operator std::unique_ptr<Optimizer>() const { return std::make_unique<AdamWOptimizer>(*this); }

}  // namespace tessera
