// AdamW that also says how long it computed. The tasks around each update take the time on the stream itself.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "measure/timing.hpp"
#include "tessera/optim/adamw.hpp"

namespace bench {

struct OptimizerTime {
  Clock::time_point start;
  double seconds = 0.0;
};

class TimedOptimizer final : public tessera::Optimizer {
 public:
  // `time` is written by the stream's tasks; it must outlive the model.
  TimedOptimizer(const tessera::AdamW& settings, OptimizerTime& time) : adamw_(settings), time_(time) {}

  std::string_view name() const override { return adamw_->name(); }
  std::vector<std::string> states() const override { return adamw_->states(); }
  float learning_rate() const override { return adamw_->learning_rate(); }
  float weight_decay() const override { return adamw_->weight_decay(); }
  tessera::kernels::StepSettings step_settings() const override { return adamw_->step_settings(); }

  bool rounds() const override { return adamw_->rounds(); }
  bool widens() const override { return adamw_->widens(); }
  void update(tessera::Stream& stream, const tessera::OptimizerSpans& spans, const tessera::OptimizerGroup& group,
              const tessera::kernels::StepScalars* scalars) const override {
    stream.submit([&time = time_] { time.start = Clock::now(); });
    adamw_->update(stream, spans, group, scalars);
    stream.submit([&time = time_] { time.seconds += seconds_since(time.start); });
  }

 private:
  std::unique_ptr<tessera::Optimizer> adamw_;
  OptimizerTime& time_;
};

}  // namespace bench
