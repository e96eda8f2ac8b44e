// AdamW8bit: AdamW whose moments are kept in 8 bits, with an fp32 scale for each block of 256 elements of a tensor
// (Dettmers et al. 2021): 2.03 bytes for a parameter in place of 8. The formula and the maps are in
// kernels/adamw8bit.hpp. Every tensor's moments are in 8 bits, however small it is, so what a run computes depends on
// neither strategy, wrapping nor number of ranks more than AdamW's does.
//
//   model.finalize(tessera::AdamW8bit{.learning_rate = 3e-4f, .weight_decay = 0.1f, .clip_norm = 1.0f});
#pragma once

#include <memory>
#include <vector>

#include "tessera/shard/optimizer.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// The settings are AdamW's.
struct AdamW8bit {
  float learning_rate = 1e-3f;  // of a step that is given no other; >= 0
  float beta1 = 0.9f;           // decay of the first moment, in [0, 1)
  float beta2 = 0.999f;         // decay of the second moment, in [0, 1)
  float epsilon = 1e-8f;        // > 0
  float weight_decay = 0.01f;   // >= 0
  float clip_norm = 0.0f;       // the global gradient norm is clipped to it; 0: no clipping
  std::vector<ParameterGroup> groups = {};

  // The optimizer with these settings. Throws UsageError naming a setting that is out of range, and its value.
  operator std::unique_ptr<Optimizer>()
      const;  // NOLINT(google-explicit-constructor): settings stand for their optimizer
  operator std::shared_ptr<const Optimizer>() const;  // NOLINT(google-explicit-constructor): likewise, of some units
};

}  // namespace tessera

#pragma GCC visibility pop
