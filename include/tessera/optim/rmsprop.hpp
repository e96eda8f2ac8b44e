// RMSprop (Tieleman & Hinton 2012) in PyTorch's form. The formula is in kernels/optimizer.hpp. States: "v", the mean of
// squares; "mean", of the gradient, where it is centered; "velocity", where there is momentum.
//
//   model.finalize(tessera::RmsProp{.learning_rate = 1e-3f, .momentum = 0.9f});
#pragma once

#include <memory>
#include <vector>

#include "tessera/shard/optimizer.hpp"

#pragma GCC visibility push(default)

namespace tessera {

struct RmsProp {
  float learning_rate = 1e-2f;  // of a step that is given no other; >= 0
  float alpha = 0.99f;          // decay of the means, in [0, 1)
  float epsilon = 1e-8f;        // > 0
  float weight_decay = 0.0f;    // added to the gradient; >= 0
  float momentum = 0.0f;        // in [0, 1); 0 keeps no velocity
  bool centered = false;        // divides by the root of the variance (Graves 2013) in place of that of the mean square
  float clip_norm = 0.0f;       // the global gradient norm is clipped to it; 0: no clipping
  std::vector<ParameterGroup> groups = {};

  // The optimizer with these settings. Throws UsageError naming a setting that is out of range, and its value.
  operator std::unique_ptr<Optimizer>()
      const;  // NOLINT(google-explicit-constructor): settings stand for their optimizer
  operator std::shared_ptr<const Optimizer>() const;  // NOLINT(google-explicit-constructor): likewise, of some units
};

}  // namespace tessera

#pragma GCC visibility pop
