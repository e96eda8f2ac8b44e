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
  float gradient_factor = 1.0f;     // what the optimizer multiplies each gradient with (clipping)
  float loss_scale = 1.0f;          // what the user's loss gradient is multiplied with
  std::int32_t skip = 0;            // 1: the norm is not finite, this update changes nothing
  std::int32_t good_steps = 0;      // in a row, since the loss scale last changed
  float applied_loss_scale = 1.0f;  // the one that this step's gradients carry
  std::int32_t padding = 0;
};

// The factor on the loss that keeps small fp16 gradients from vanishing. Dynamic: a step whose norm is not finite is
// skipped and multiplies it with `backoff`; `growth_interval` good steps in a row multiply it with `growth`
// (Micikevicius et al. 2018, section 3.2). Powers of two are exact.
struct LossScaling {
  float initial = 1.0f;  // > 0
  bool dynamic = false;
  float growth = 2.0f;                  // > 1
  float backoff = 0.5f;                 // in (0, 1)
  std::int32_t growth_interval = 2000;  // > 0
  float smallest = 0x1p-14f;            // > 0: bounds of what it may become
  float largest = 0x1p24f;
};
inline constexpr LossScaling dynamic_loss_scaling{.initial = 65536.0f, .dynamic = true};

struct StepSettings {
  float clip_norm = 0.0f;        // 0: no clipping
  double decay[2] = {0.0, 0.0};  // the optimizer's exponential decays (AdamW: beta1, beta2)
  LossScaling loss_scaling = {};
};

// Combines partial squared norms in (unit, rank) order: partials[rank * units + unit], fp64. Then
//   norm = sqrt(sum) / loss_scale, skip = norm is not finite,
//   gradient_factor = (clip_norm > 0 && norm > clip_norm ? clip_norm / norm : 1) / loss_scale,
// then the loss scale of the next step, and, unless skipped, step and decay_power. Enqueues on `stream`; does not
// synchronise.
struct NormPartials {
  const double* values;
  std::size_t units;
  std::size_t ranks;
};
void begin_update(Stream& stream, StepScalars* scalars, NormPartials partials, StepSettings settings);

// *scalars = values, on the stream.
void set_scalars(Stream& stream, StepScalars* scalars, const StepScalars& values);

}  // namespace tessera::kernels
