// AdamW as the runtime sees it: settings around the fused kernel.
#include "tessera/optim/adamw.hpp"

#include "optim/adamw_formula.hpp"

namespace tessera {

namespace {

kernels::AdamWSpans adamw_spans(const OptimizerSpans& spans) {
  return {.master = spans.master,
          .first_moment = spans.states[0],
          .second_moment = spans.states[1],
          .gradient = spans.gradient,
          .count = spans.count,
          .rounded = spans.parameters};
}

void update_adamw(Stream& stream, const OptimizerSpans& unit, std::span<const kernels::AdamWRun> runs,
                  float learning_rate, const kernels::StepScalars* scalars) {
  kernels::adamw(stream, adamw_spans(unit), runs, learning_rate, scalars);
}

class AdamWOptimizer final : public optim::AdamWFormula {
 public:
  explicit AdamWOptimizer(const AdamW& settings) : AdamWFormula(settings, "AdamW") {}

  std::string_view name() const final { return "adamw"; }
  std::vector<std::string> states() const final { return {"m", "v"}; }
  void update(Stream& stream, const OptimizerSpans& spans, const OptimizerGroup& group,
              const kernels::StepScalars* scalars) const final {
    kernels::adamw(stream, adamw_spans(spans), kernel_settings(group, group.learning_rate), scalars);
  }
  std::unique_ptr<UnitUpdate> prepare(std::span<const OptimizerRun> runs) const final {
    return std::make_unique<optim::AdamWUpdate>(kernel_runs(runs), update_adamw);
  }
};

}  // namespace

AdamW::operator std::shared_ptr<const Optimizer>() const { return std::unique_ptr<Optimizer>(*this); }
AdamW::operator std::unique_ptr<Optimizer>() const { return std::make_unique<AdamWOptimizer>(*this); }

}  // namespace tessera
