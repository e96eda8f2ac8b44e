// Stochastic gradient descent with momentum, in PyTorch's form. The formula, operation by operation, is in
// kernels/optimizer.hpp; clipping by the global norm in kernels/step_scalars.hpp.
//
//   model.finalize(tessera::Sgd{.learning_rate = 0.1f, .momentum = 0.9f});
#pragma once

#include <memory>
#include <vector>

#include "tessera/shard/optimizer.hpp"

#pragma GCC visibility push(default)

namespace tessera {

struct Sgd {
  float learning_rate = 1e-2f;  // of a step that is given no other; >= 0
  float momentum = 0.0f;        // in [0, 1); 0 keeps no state
  float weight_decay = 0.0f;    // added to the gradient; >= 0
  bool nesterov = false;        // needs momentum
  float dampening = 0.0f;       // in [0, 1): so much less of the gradient is added to the velocity, but at first
  float clip_norm = 0.0f;       // the global gradient norm is clipped to it; 0: no clipping
  std::vector<ParameterGroup> groups = {};

  // The optimizer with these settings. Throws UsageError naming a setting that is out of range, and its value.
  operator std::unique_ptr<Optimizer>()
      const;  // NOLINT(google-explicit-constructor): settings stand for their optimizer
  operator std::shared_ptr<const Optimizer>() const;  // NOLINT(google-explicit-constructor): likewise, of some units
};

}  // namespace tessera

#pragma GCC visibility pop
