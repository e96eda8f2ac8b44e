// AdamW8bit as the runtime sees it: settings around the fused kernel, and states of codes and scales.
#include "tessera/optim/adamw8bit.hpp"

#include "optim/adamw_formula.hpp"
#include "tessera/kernels/adamw8bit.hpp"

namespace tessera {

namespace {

// In the order of AdamW8bitOptimizer::state_specs().
kernels::AdamW8bitSpans spans_of_8bit(const OptimizerSpans& spans) {
  const auto codes = [&](std::size_t state) { return reinterpret_cast<std::uint8_t*>(spans.states[state]); };
  return {.master = spans.master,
          .first = {codes(0), spans.states[1]},
          .second = {codes(2), spans.states[3]},
          .gradient = spans.gradient,
          .count = spans.count,
          .rounded = spans.parameters};
}

void update_adamw8bit(Stream& stream, const OptimizerSpans& unit, std::span<const kernels::AdamWRun> runs,
                      float learning_rate, const kernels::StepScalars* scalars) {
  kernels::adamw8bit(stream, spans_of_8bit(unit), runs, learning_rate, scalars);
}

class AdamW8bitOptimizer final : public optim::AdamWFormula {
 public:
  explicit AdamW8bitOptimizer(const AdamW8bit& settings) : AdamWFormula(optim::as_adamw(settings), "AdamW8bit") {}

  std::string_view name() const final { return "adamw8bit"; }
  std::vector<std::string> states() const final { return plan::names_of(state_specs()); }
  std::vector<plan::StateSpec> state_specs() const final {
    constexpr std::size_t block = kernels::moment_block;
    return {{"m", DType::u8}, {"m_scale", DType::fp32, block}, {"v", DType::u8}, {"v_scale", DType::fp32, block}};
  }
  void update(Stream& stream, const OptimizerSpans& spans, const OptimizerGroup& group,
              const kernels::StepScalars* scalars) const final {
    kernels::adamw8bit(stream, spans_of_8bit(spans), kernel_settings(group, group.learning_rate), scalars);
  }
  std::unique_ptr<UnitUpdate> prepare(std::span<const OptimizerRun> runs) const final {
    return prepared(runs, update_adamw8bit);
  }
};

}  // namespace

AdamW8bit::operator std::shared_ptr<const Optimizer>() const { return std::unique_ptr<Optimizer>(*this); }
AdamW8bit::operator std::unique_ptr<Optimizer>() const { return std::make_unique<AdamW8bitOptimizer>(*this); }

}  // namespace tessera
