// The default by type, and the limits of what may be asked for.
#include "shard/loss_scaling.hpp"

#include <fmt/format.h>

#include <cmath>

#include "tessera/base/error.hpp"

namespace tessera {

namespace {

void require(bool holds, const char* name, float value, const char* range) {
  if (!holds) throw UsageError(fmt::format("loss_scaling.{} is {}: it must be {}", name, value, range));
}

void check(const kernels::LossScaling& scaling) {
  require(scaling.initial > 0 && std::isfinite(scaling.initial), "initial", scaling.initial, "above 0 and finite");
  if (!scaling.dynamic) return;
  require(scaling.growth > 1 && std::isfinite(scaling.growth), "growth", scaling.growth, "above 1 and finite");
  require(scaling.backoff > 0 && scaling.backoff < 1, "backoff", scaling.backoff, "between 0 and 1");
  require(scaling.growth_interval > 0, "growth_interval", static_cast<float>(scaling.growth_interval), "above 0");
  require(scaling.smallest > 0 && scaling.smallest <= scaling.initial, "smallest", scaling.smallest,
          "above 0 and at most the initial scale");
  require(scaling.largest >= scaling.initial && std::isfinite(scaling.largest), "largest", scaling.largest,
          "finite and at least the initial scale");
}

// Frozen units count: they may be thawed, and pass the gradient of their input on.
bool has_fp16_gradients(const plan::Plan& plan) {
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const Precision& types = plan.precision(unit);
    if (types.gradient == DType::fp16 || types.wire == DType::fp16) return true;
  }
  return false;
}

}  // namespace

kernels::LossScaling resolved(const std::optional<kernels::LossScaling>& asked, const plan::Plan& plan) {
  if (!asked) return has_fp16_gradients(plan) ? kernels::dynamic_loss_scaling : kernels::LossScaling{};
  check(*asked);
  return *asked;
}

void SkippedSteps::look(const kernels::StepScalars& now) {
  if (now.step != applied_ || now.skipped_steps < skipped_before_) {
    applied_ = now.step;
    skipped_before_ = now.skipped_steps;
    next_ = many;
  }
  const std::int64_t row = now.skipped_steps - skipped_before_;
  if (row < next_) return;
  next_ = 2 * row;
  if (world_.rank() != 0) return;
  world_.warn(fmt::format(
      "{} updates in a row were skipped because the norm of the gradients was not finite: no weight has "
      "changed since update {}. Look for inf and NaN in inputs, losses and layers, or lower the learning rate",
      row, applied_));
}

}  // namespace tessera
