// AdamW and Adam as the runtime sees them: settings around the fused kernel.
#include "tessera/optim/adamw.hpp"

#include "optim/adamw_formula.hpp"
#include "tessera/optim/adam.hpp"

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
  explicit AdamWOptimizer(const AdamW& settings) : AdamWFormula(settings, "AdamW"), name_("adamw") {}
  explicit AdamWOptimizer(const Adam& settings)
      : AdamWFormula(optim::as_adamw(settings), "Adam", true), name_("adam") {}

  std::string_view name() const final { return name_; }
  std::vector<std::string> states() const final { return {"m", "v"}; }
  void update(Stream& stream, const OptimizerSpans& spans, const OptimizerGroup& group,
              const kernels::StepScalars* scalars) const final {
    kernels::adamw(stream, adamw_spans(spans), kernel_settings(group, group.learning_rate), scalars);
  }
  std::unique_ptr<UnitUpdate> prepare(std::span<const OptimizerRun> runs) const final {
    return prepared(runs, update_adamw);
  }

 private:
  std::string_view name_;
};

}  // namespace

AdamW::operator std::shared_ptr<const Optimizer>() const { return std::unique_ptr<Optimizer>(*this); }
AdamW::operator std::unique_ptr<Optimizer>() const { return std::make_unique<AdamWOptimizer>(*this); }
Adam::operator std::shared_ptr<const Optimizer>() const { return std::unique_ptr<Optimizer>(*this); }
Adam::operator std::unique_ptr<Optimizer>() const { return std::make_unique<AdamWOptimizer>(*this); }

}  // namespace tessera
