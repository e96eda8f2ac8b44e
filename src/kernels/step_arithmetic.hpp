// One update's decisions are scalar arithmetic that hosts and devices share: the same operations, the same bits.
#pragma once

#include "kernels/any_device.hpp"
#include "kernels/exact_arithmetic.hpp"
#include "tessera/kernels/optimizer.hpp"
#include "tessera/kernels/step_scalars.hpp"

namespace tessera::kernels {

TESSERA_ANY_DEVICE inline void adapt_loss_scale(StepScalars& scalars, const LossScaling& scaling) {
  if (!scaling.dynamic) return;
  if (scalars.skip != 0) {
    const float less = scalars.loss_scale * scaling.backoff;
    scalars.loss_scale = less < scaling.smallest ? scaling.smallest : less;
    scalars.good_steps = 0;
  } else if (++scalars.good_steps >= scaling.growth_interval) {
    const float more = scalars.loss_scale * scaling.growth;
    scalars.loss_scale = more > scaling.largest ? scaling.largest : more;
    scalars.good_steps = 0;
  }
}

// base ^ exponent by products alone, in an order that depends on the exponent: the same bits on every device.
TESSERA_ANY_DEVICE inline double power_of(double base, std::int64_t exponent) {
  double power = 1.0;
  for (; exponent > 0; exponent /= 2, base *= base) {
    if (exponent % 2 != 0) power *= base;
  }
  return power;
}

// 1 - beta ^ (the steps that its moments have seen) of AdamW's two decays (kernels/optimizer.hpp), by which their
// moments are too small so far.
struct BiasCorrections {
  float first;
  float second;
};
TESSERA_ANY_DEVICE inline BiasCorrections bias_corrections(const StepScalars& scalars, const AdamWSettings& settings) {
  const bool own = settings.own_decays || settings.begun != 0;
  const std::int64_t steps = scalars.step - settings.begun;
  const double first = own ? power_of(static_cast<double>(settings.beta1), steps) : scalars.decay_power[0];
  const double second = own ? power_of(static_cast<double>(settings.beta2), steps) : scalars.decay_power[1];
  return {static_cast<float>(1.0 - first), static_cast<float>(1.0 - second)};
}

// The gradient beside SGD's velocity is dampened, but for the first one.
TESSERA_ANY_DEVICE inline float kept_gradient(const StepScalars& scalars, const SgdSettings& settings) {
  return scalars.step - settings.begun == 1 ? 1.0f : 1.0f - settings.dampening;
}

TESSERA_ANY_DEVICE inline float rest_of(const RootScaledSettings& settings) {
  return settings.decay == 1.0f ? 1.0f : 1.0f - settings.decay;
}
TESSERA_ANY_DEVICE inline float rate_of(const StepScalars& scalars, const RootScaledSettings& settings) {
  const auto before = static_cast<float>(scalars.step - settings.begun - 1);
  return settings.learning_rate / (1.0f + before * settings.rate_decay);
}

// ---- a rank's row: norms, its part, the weights of its granules ----

inline constexpr std::size_t part_values = sizeof(StepPart) / sizeof(double);

TESSERA_ANY_DEVICE inline std::size_t norm_values(const NormPartials& partials) {
  return partials.units * (partials.exact ? sizeof(ExactSquares) / sizeof(double) : 1);
}

TESSERA_ANY_DEVICE inline std::size_t row_of(const NormPartials& partials) {
  return norm_values(partials) + (partials.divisor > 0.0 ? part_values + partials.rounds : 0);
}

// Entry i of the norms of all rows, one rank after the other.
TESSERA_ANY_DEVICE inline const ExactSquares& exact_norm(const NormPartials& partials, std::size_t i) {
  const double* row = partials.values + i / partials.units * row_of(partials);
  return reinterpret_cast<const ExactSquares*>(row)[i % partials.units];
}

// The same of norms in fp64.
TESSERA_ANY_DEVICE inline double norm_of(const NormPartials& partials, std::size_t i) {
  return partials.values[i / partials.units * row_of(partials) + i % partials.units];
}

// Entry i as a term of a sum that depends on the terms alone.
TESSERA_ANY_DEVICE inline ExactSquares exact_term(const NormPartials& partials, std::size_t i) {
  return partials.exact ? exact_norm(partials, i) : exact_term(norm_of(partials, i));
}

TESSERA_ANY_DEVICE inline const StepPart& part_of(const NormPartials& partials, std::size_t rank) {
  return *reinterpret_cast<const StepPart*>(partials.values + rank * row_of(partials) + norm_values(partials));
}

// Granules are dealt to ranks in turn, so this is their order. What does not exist weighs 0.0, which changes no sum.
TESSERA_ANY_DEVICE inline double weight_of_granules(const NormPartials& partials) {
  const double* const weights = partials.values + norm_values(partials) + part_values;
  double weight = 0.0;
  for (std::size_t round = 0; round < partials.rounds; ++round) {
    for (std::size_t rank = 0; rank < partials.ranks; ++rank) weight += weights[rank * row_of(partials) + round];
  }
  return weight;
}

// ---- the decisions ----

// All ranks' parts.
struct PartsOfStep {
  double weight = 1.0;
  double divisor = 1.0;  // that gradients carry
  bool idle = false;     // nobody brought anything
};

TESSERA_ANY_DEVICE inline PartsOfStep sum_of_parts(const NormPartials& partials) {
  if (!(partials.divisor > 0.0)) return {};
  double weight = 0.0;
  std::size_t imagined = 0, counting = 0, weighing = 0, discarding = 0;
  for (std::size_t rank = 0; rank < partials.ranks; ++rank) {
    const StepPart& part = part_of(partials, rank);
    weight += part.weight;
    if (part.kind == StepPart::Kind::imagined) ++imagined;
    if (part.kind == StepPart::Kind::micro_batches) ++counting;
    if (part.kind == StepPart::Kind::samples) ++weighing;
    if (part.kind == StepPart::Kind::discarded) ++discarding;
  }
  if (partials.rounds > 0 && weighing > 0) weight = weight_of_granules(partials);
  // Not even this rank's own part was written where its stream has failed.
  const std::size_t there = partials.ranks - imagined;
  if (imagined > 0 && there > 0) weight *= static_cast<double>(partials.ranks) / static_cast<double>(there);
  const double zero = 0.0;
  if (counting > 0 && weighing > 0) weight = zero / zero;
  return {weight, partials.divisor, counting + weighing + discarding == 0};
}

// Changes nothing but what it reports.
TESSERA_ANY_DEVICE inline void set_empty_step(StepScalars& scalars) {
  scalars.gradient_norm = 0.0;
  scalars.skip = 1;
  scalars.gradient_factor = 0.0f;
  scalars.applied_loss_scale = scalars.loss_scale;
}

// `scaled_norm` is that of the gradients as they came, with the loss scale in them.
TESSERA_ANY_DEVICE inline void set_step(StepScalars& scalars, double scaled_norm, const PartsOfStep& parts,
                                        const StepSettings& settings) {
  scalars.weight = parts.weight;
  scalars.idle = parts.idle ? 1 : 0;
  const bool finite = parts.weight - parts.weight == 0.0;
  if (parts.weight == 0.0 || !finite) return set_empty_step(scalars);
  const double share = parts.divisor / parts.weight;
  const double clip = static_cast<double>(settings.clip_norm);
  const double scale = static_cast<double>(scalars.loss_scale);
  const double norm = scaled_norm * share / scale;
  scalars.gradient_norm = norm;
  const float factor = static_cast<float>((clip > 0.0 && norm > clip ? clip / norm : 1.0) * share / scale);
  scalars.gradient_factor = factor;
  // Neither infinite nor NaN. The weights of samples may be so small that the factor alone is.
  scalars.skip = norm - norm == 0.0 && factor - factor == 0.0f ? 0 : 1;
  scalars.applied_loss_scale = scalars.loss_scale;
  adapt_loss_scale(scalars, settings.loss_scaling);
  if (scalars.skip != 0) {
    ++scalars.skipped_steps;
    return;
  }
  ++scalars.step;
  for (int i = 0; i < 2; ++i) scalars.decay_power[i] *= settings.decay[i];
}

}  // namespace tessera::kernels
