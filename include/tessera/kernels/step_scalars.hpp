// The few numbers that one optimizer step shares, in device memory: the host never waits for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/device/stream.hpp"

#pragma GCC visibility push(default)

namespace tessera::kernels {

struct StepScalars {
  double gradient_norm = 0.0;      // global, before clipping; of the averaged gradients
  double decay_power[2] = {1, 1};  // decay[i] ^ step, kept as a running product so that devices agree on the bits
  std::int64_t step = 0;           // updates applied; a skipped step does not count
  std::int64_t skipped_steps = 0;
  float gradient_factor = 1.0f;     // what the optimizer multiplies each gradient with (clipping)
  float loss_scale = 1.0f;          // what the user's loss gradient is multiplied with
  std::int32_t skip = 0;            // 1: norm or factor is not finite, this update changes nothing
  std::int32_t good_steps = 0;      // in a row, since the loss scale last changed
  float applied_loss_scale = 1.0f;  // the one that this step's gradients carry
  std::int32_t idle = 0;            // 1: every rank skipped the last step, which changed nothing
  double weight = 0.0;  // of all ranks' parts of the last step; not finite: they do not fit together (StepPart)
};

// A StepPart is what one rank brings to the mean over a step. All ranks that bring something count micro-batches, or
// all give weights.
struct StepPart {
  enum class Kind : std::int64_t {
    imagined,       // memory that nobody wrote: of ranks that a simulation leaves out, which count as much as others
    nothing,        // the rank skipped the step; weight 0
    micro_batches,  // so many, each of weight 1
    samples,        // the user's weight
    discarded,      // whatever it computed is dropped, as every rank's; weight 0
  };
  double weight = 0.0;  // finite, at least 0
  Kind kind = Kind::imagined;
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

// Combines partial squared norms in (unit, rank) order; exact ones, and with any_order others, in any. Then
//   share = divisor / weight, the sum of all ranks' parts, in their order: exactly 1 when all did all micro-batches,
//   norm = sqrt(sum) * share / loss_scale,
//   gradient_factor = (clip_norm > 0 && norm > clip_norm ? clip_norm / norm : 1) * share / loss_scale,
//   skip = one of them is not finite,
// then the loss scale of the next step, and, unless skipped, step and decay_power. Where the weight is 0 or not finite,
// the step is skipped, the norm is 0, and neither counts nor loss scale change. Enqueues on `stream`; does not
// synchronise.
//
// NormPartials are rows, one of each rank, of norms by unit and of what follows them.
struct NormPartials {
  const double* values;  // a unit's is values[rank * row + unit]
  std::size_t units;
  std::size_t ranks;
  // Gradients were divided by this before: ranks × micro-batches. Each row then goes on with the rank's StepPart, of 2
  // values. 0: rows are norms alone, and gradients are the mean already.
  double divisor = 0.0;
  bool exact = false;  // norms are ExactSquares, of 4 values each
  // Each row ends with the weights of so many granules of the rank, 0.0 where it has fewer. Of ranks that give weights
  // of samples, what counts is then their sum in the order of granules: the first of rank 0, of rank 1, …, and then
  // the second ones. Needs a divisor.
  std::size_t rounds = 0;
  bool any_order = false;  // norms of up to 2^287 are added as exact ones: no matter which unit stands where
};
void begin_update(Stream& stream, StepScalars* scalars, NormPartials partials, StepSettings settings);

// *part = value, on the stream.
void set_part(Stream& stream, StepPart* part, const StepPart& value);

// The same, and the `rounds` doubles behind the part become the weights of this rank's granules, then 0.0. Copies
// `weights`, of which there are `rounds` at most (UsageError), and allocates nothing.
void set_part(Stream& stream, StepPart* part, const StepPart& value, std::span<const double> weights,
              std::size_t rounds);

// *scalars = values, on the stream.
void set_scalars(Stream& stream, StepScalars* scalars, const StepScalars& values);

}  // namespace tessera::kernels

#pragma GCC visibility pop
