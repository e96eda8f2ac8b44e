// Fused optimizer updates: one pass over fp32 shards, elementwise, predicated on StepScalars::skip. Where `rounded` is
// not null, the new masters are written there, too, as cast() rounds them (elementwise.hpp), so that nobody need read
// them again for that; it is bf16 or fp16, or UsageError is thrown. A gradient of 16 bits has the bits of its values in
// fp32.
// Each enqueues on `stream` and does not synchronise. Same bits on every instruction set and number of threads
// (parallel.hpp): the order of operations is the formula's, every a*b+c below written as fma is one fused operation,
// nothing else is contracted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/device/stream.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/kernels/step_scalars.hpp"

#pragma GCC visibility push(default)

namespace tessera::kernels {

// AdamW: decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), bias correction as in Kingma & Ba 2015.
//   g = gradient * gradient_factor
//   m = fma(beta1, m, (1 - beta1) * g);  v = fma(beta2, v, ((1 - beta2) * g) * g)
//   m_hat = m / (1 - beta1^t);           v_hat = v / (1 - beta2^t)
//   master = master * (1 - lr * weight_decay);  master = master - lr * (m_hat / (sqrt(v_hat) + epsilon))
// Adam, `coupled`, adds the decay to the gradient: g = fma(weight_decay, master, g), and masters lose nothing else.
struct AdamWSettings {
  float learning_rate;
  float beta1;
  float beta2;
  float epsilon;
  float weight_decay;
  // beta1 and beta2 are not the ones that StepScalars keeps the powers of: theirs are computed from its step.
  bool own_decays = false;
  bool coupled = false;
  // StepScalars::step when these moments began, at zero: t counts from there.
  std::int64_t begun = 0;
};
struct AdamWSpans {
  float* master;
  float* first_moment;
  float* second_moment;
  Source gradient;
  std::size_t count;
  Target rounded = {nullptr, DType::bf16};
};
void adamw(Stream& stream, AdamWSpans spans, AdamWSettings settings, const StepScalars* scalars);

// Elements of the spans that have settings of their own, whose learning rate is a factor of the call's.
template <typename Settings>
struct UpdateRun {
  std::size_t first;
  std::size_t count;
  Settings settings;
};
using AdamWRun = UpdateRun<AdamWSettings>;
// The runs alone, each as by a call of its own; on a CUDA device 64 of them are one kernel. They must stay until the
// stream is through.
void adamw(Stream& stream, AdamWSpans spans, std::span<const AdamWRun> runs, float learning_rate,
           const StepScalars* scalars);

// SGD with momentum, PyTorch's form:
//   g = fma(weight_decay, master, gradient * gradient_factor)
//   velocity = fma(momentum, velocity, (1 - dampening) * g), the first time without dampening
//   d = nesterov ? fma(momentum, velocity, g) : velocity
//   master = fma(-lr, d, master)
// With momentum 0 `velocity` may be null and d = g.
struct SgdSettings {
  float learning_rate;
  float momentum;
  float weight_decay;
  bool nesterov;
  float dampening = 0.0f;
  std::int64_t begun = 0;  // StepScalars::step when the velocity began, at zero
};
struct SgdSpans {
  float* master;
  float* velocity;
  Source gradient;
  std::size_t count;
  Target rounded = {nullptr, DType::bf16};
};
void sgd(Stream& stream, SgdSpans spans, SgdSettings settings, const StepScalars* scalars);
using SgdRun = UpdateRun<SgdSettings>;
void sgd(Stream& stream, SgdSpans spans, std::span<const SgdRun> runs, float learning_rate, const StepScalars* scalars);

// RMSprop and Adagrad, PyTorch's forms: the gradient over the root of a sum of its squares.
//   g = fma(weight_decay, master, gradient * gradient_factor);  rest = decay == 1 ? 1 : 1 - decay
//   squares = fma(rest * g, g, decay * squares);  root = sqrt(squares + initial)
//   of centred ones  mean = fma(rest, g - mean, mean);  root = sqrt(squares - mean * mean)
//   d = g / (root + epsilon);  with momentum  velocity = fma(momentum, velocity, d);  d = velocity
//   master = fma(-lr / (1 + (t - 1) * rate_decay), d, master)
// `mean` is null of what is not centred, `velocity` where there is no momentum.
struct RootScaledSettings {
  float learning_rate;
  float decay;  // of the sum of squares; 1: a plain sum (Adagrad)
  float epsilon;
  float weight_decay;
  float initial = 0.0f;  // with which the sum begins, though `squares` are zero then
  float momentum = 0.0f;
  float rate_decay = 0.0f;  // of the learning rate
  std::int64_t begun = 0;   // StepScalars::step when the sums began, at zero: t counts from there
};
struct RootScaledSpans {
  float* master;
  float* squares;
  float* mean;
  float* velocity;
  Source gradient;
  std::size_t count;
  Target rounded = {nullptr, DType::bf16};
};
void root_scaled(Stream& stream, RootScaledSpans spans, RootScaledSettings settings, const StepScalars* scalars);
using RootScaledRun = UpdateRun<RootScaledSettings>;
void root_scaled(Stream& stream, RootScaledSpans spans, std::span<const RootScaledRun> runs, float learning_rate,
                 const StepScalars* scalars);

// The outer step of rare synchronisation: PyTorch's Nesterov SGD, whose gradient is the way from the mean of the
// replicas' weights back to the weights that they had in common (DiLoCo, Douillard et al. 2023, algorithm 1).
//   d = anchor - mean;  momentum_buffer = momentum * momentum_buffer + d
//   master = (mean + (1 - lr) * d) - (lr * momentum) * momentum_buffer;  anchor = master
// With learning rate 1 and momentum 0 that is the mean.
struct OuterSettings {
  float learning_rate;
  float momentum;
};
struct OuterSpans {
  float* master;  // written only
  float* anchor;
  float* momentum_buffer;
  const float* mean;
  std::size_t count;
};
void outer_update(Stream& stream, OuterSpans spans, OuterSettings settings);

}  // namespace tessera::kernels

#pragma GCC visibility pop
