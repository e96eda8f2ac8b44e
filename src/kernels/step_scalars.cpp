// The scalars of one optimizer step, computed on CPU streams.
#include "tessera/kernels/step_scalars.hpp"

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

void set_step(StepScalars& scalars, double norm, const StepSettings& settings) {
  const double clip = static_cast<double>(settings.clip_norm);
  scalars.gradient_norm = norm;
  scalars.skip = std::isfinite(norm) ? 0 : 1;
  scalars.gradient_factor = clip > 0.0 && norm > clip ? static_cast<float>(clip / norm) : 1.0f;
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
