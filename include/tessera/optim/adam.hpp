// Adam (Kingma & Ba 2015) in PyTorch's form: weight decay is added to the gradient. AdamW decouples it (adamw.hpp);
// without decay both have the same bits, and the same states in checkpoints. The formula is in kernels/optimizer.hpp.
//
//   model.finalize(tessera::Adam{.learning_rate = 3e-4f});
#pragma once

#include <memory>
#include <vector>

#include "tessera/shard/optimizer.hpp"

#pragma GCC visibility push(default)

namespace tessera {

struct Adam {
  float learning_rate = 1e-3f;  // of a step that is given no other; >= 0
  float beta1 = 0.9f;           // decay of the first moment, in [0, 1)
  float beta2 = 0.999f;         // decay of the second moment, in [0, 1)
  float epsilon = 1e-8f;        // > 0
  float weight_decay = 0.0f;    // added to the gradient; >= 0
  float clip_norm = 0.0f;       // the global gradient norm is clipped to it; 0: no clipping
  std::vector<ParameterGroup> groups = {};

  // The optimizer with these settings. Throws UsageError naming a setting that is out of range, and its value.
  operator std::unique_ptr<Optimizer>()
      const;  // NOLINT(google-explicit-constructor): settings stand for their optimizer
  operator std::shared_ptr<const Optimizer>() const;  // NOLINT(google-explicit-constructor): likewise, of some units
};

}  // namespace tessera

#pragma GCC visibility pop
