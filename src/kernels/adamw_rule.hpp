// The numbers of an AdamW step that all elements of a run share.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/step_arithmetic.hpp"

namespace tessera::kernels {

inline AdamWRule rule_of(const AdamWSettings& settings, const StepScalars& scalars) {
  const BiasCorrections corrections = bias_corrections(scalars, settings);
  return {.gradient_factor = scalars.gradient_factor,
          .learning_rate = settings.learning_rate,
          .beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .epsilon = settings.epsilon,
          .weight_decay = settings.weight_decay,
          .first_correction = corrections.first,
          .second_correction = corrections.second,
          .coupled = settings.coupled};
}

}  // namespace tessera::kernels
