// The elementwise parts of Muon (Jordan et al. 2024): what stands before, between and behind the products that
// orthogonalise a matrix. Each enqueues on `stream` and does not synchronise; pointers are the stream's device's. Same
// bits on every device, instruction set and number of threads: one rounding for each operation as written.
#pragma once

#include <cstddef>

#include "tessera/base/half.hpp"
#include "tessera/device/stream.hpp"
#include "tessera/kernels/step_scalars.hpp"

#pragma GCC visibility push(default)

namespace tessera::kernels {

// A step's direction, before it is orthogonalised, in PyTorch's form (torch.optim.Muon). Nothing where scalars->skip.
//   g = gradient * gradient_factor;  m = m + (1 - momentum) * (g - m)
//   direction = bf16(nesterov ? m + (1 - momentum) * (g - m) : m)
struct MuonSettings {
  float momentum;
  bool nesterov;
};
struct MuonSpans {
  float* momentum;
  const float* gradient;
  bf16* direction;
  std::size_t count;
};
void muon_direction(Stream& stream, MuonSpans spans, MuonSettings settings, const StepScalars* scalars);

// With decoupled weight decay. Nothing where scalars->skip.
//   master = master * (1 - learning_rate * weight_decay);  master = master - (learning_rate * scale) * direction
struct MuonStep {
  float learning_rate;
  float scale;
  float weight_decay;
};
void muon_apply(Stream& stream, float* master, const bf16* direction, std::size_t count, MuonStep step,
                const StepScalars* scalars);

// x = bf16(x / max(sqrt(squares), least)) for each of several matrices; squares[n] is the sum of the nth one's x^2
// (norm.hpp). What stands between matrices may become anything.
struct NormedMatrices {
  bf16* x;
  std::size_t count;   // of a matrix
  std::size_t stride;  // elements from one to the next
  std::size_t matrices;
  const double* squares;
  float least;
};
void divide_by_norm(Stream& stream, const NormedMatrices& of);

// to = bf16(a * x + b * y); `to` may be x or y.
struct Combination {
  bf16* to;
  float a;
  const bf16* x;
  float b;
  const bf16* y;
  std::size_t count;
};
void combine(Stream& stream, Combination of);

}  // namespace tessera::kernels

#pragma GCC visibility pop
