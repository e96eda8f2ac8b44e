// The scalars of one optimizer step, computed on CPU streams.
#include "tessera/kernels/step_scalars.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/cpu_only.hpp"

namespace tessera::kernels {
namespace {

double sum_by_unit_and_rank(const NormPartials& partials) {
  double sum = 0.0;
  for (std::size_t unit = 0; unit < partials.units; ++unit) {
    for (std::size_t rank = 0; rank < partials.ranks; ++rank) sum += partials.values[rank * partials.units + unit];
  }
  return sum;
}

void adapt_loss_scale(StepScalars& scalars, const LossScaling& scaling) {
  if (!scaling.dynamic) return;
  if (scalars.skip != 0) {
    scalars.loss_scale = std::max(scaling.smallest, scalars.loss_scale * scaling.backoff);
    scalars.good_steps = 0;
  } else if (++scalars.good_steps == scaling.growth_interval) {
    scalars.loss_scale = std::min(scaling.largest, scalars.loss_scale * scaling.growth);
    scalars.good_steps = 0;
  }
}

// `scaled_norm` is that of the gradients as they came, with the loss scale in them.
void set_step(StepScalars& scalars, double scaled_norm, const StepSettings& settings) {
  const double clip = static_cast<double>(settings.clip_norm);
  const double scale = static_cast<double>(scalars.loss_scale);
  const double norm = scaled_norm / scale;
  scalars.gradient_norm = norm;
  scalars.skip = std::isfinite(norm) ? 0 : 1;
  scalars.gradient_factor = static_cast<float>((clip > 0.0 && norm > clip ? clip / norm : 1.0) / scale);
  scalars.applied_loss_scale = scalars.loss_scale;
  adapt_loss_scale(scalars, settings.loss_scaling);
  if (scalars.skip != 0) {
    ++scalars.skipped_steps;
    return;
  }
  ++scalars.step;
  for (std::size_t i = 0; i < 2; ++i) scalars.decay_power[i] *= settings.decay[i];
}

}  // namespace

void begin_update(Stream& stream, StepScalars* scalars, NormPartials partials, StepSettings settings) {
  cpu_only(stream, "begin_update").submit([=] {
    set_step(*scalars, std::sqrt(sum_by_unit_and_rank(partials)), settings);
  });
}

}  // namespace tessera::kernels
