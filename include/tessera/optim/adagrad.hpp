// Adagrad (Duchi, Hazan & Singer 2011) in PyTorch's form. The formula is in kernels/optimizer.hpp. State: "v", the sum
// of squares without `initial`.
//
//   model.finalize(tessera::Adagrad{.learning_rate = 1e-2f});
#pragma once

#include <memory>
#include <vector>

#include "tessera/shard/optimizer.hpp"

#pragma GCC visibility push(default)

namespace tessera {

struct Adagrad {
  float learning_rate = 1e-2f;  // of a step that is given no other; >= 0
  float rate_decay = 0.0f;      // the learning rate of step t is divided by 1 + (t - 1) * rate_decay; >= 0
  float epsilon = 1e-10f;       // > 0
  float weight_decay = 0.0f;    // added to the gradient; >= 0
  float initial = 0.0f;         // with which the sum begins; >= 0
  float clip_norm = 0.0f;       // the global gradient norm is clipped to it; 0: no clipping
  std::vector<ParameterGroup> groups = {};

  // The optimizer with these settings. Throws UsageError naming a setting that is out of range, and its value.
  operator std::unique_ptr<Optimizer>()
      const;  // NOLINT(google-explicit-constructor): settings stand for their optimizer
  operator std::shared_ptr<const Optimizer>() const;  // NOLINT(google-explicit-constructor): likewise, of some units
};

}  // namespace tessera

#pragma GCC visibility pop
