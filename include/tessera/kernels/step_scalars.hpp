// The few numbers that one optimizer step shares, in device memory: the host never waits for them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/device/stream.hpp"

namespace tessera::kernels {

struct StepScalars {
  double gradient_norm = 0.0;      // global, before clipping; of the averaged gradients
  double decay_power[2] = {1, 1};  // decay[i] ^ step, kept as a running product so that devices agree on the bits
  std::int64_t step = 0;           // updates applied; a skipped step does not count
  std::int64_t skipped_steps = 0;
  float gradient_factor = 1.0f;  // what the optimizer multiplies each gradient with (clipping)
  float loss_scale = 1.0f;       // what the user's loss gradient is multiplied with
  std::int32_t skip = 0;         // 1: the norm is not finite, this update changes nothing
  std::int32_t padding = 0;
};

struct StepSettings {
  float clip_norm = 0.0f;        // 0: no clipping
  double decay[2] = {0.0, 0.0};  // the optimizer's exponential decays (AdamW: beta1, beta2)
};

// Combines partial squared norms in (unit, rank) order: partials[rank * units + unit], fp64. Then
//   norm = sqrt(sum), skip = norm is not finite, gradient_factor = clip_norm > 0 && norm > clip_norm ? clip_norm / norm
//   : 1,
// and, unless skipped, advances step and decay_power. Enqueues on `stream`; does not synchronise.
struct NormPartials {
  const double* values;
  std::size_t units;
  std::size_t ranks;
};
void begin_update(Stream& stream, StepScalars* scalars, NormPartials partials, StepSettings settings);

}  // namespace tessera::kernels
