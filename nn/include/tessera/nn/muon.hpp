// Muon (Jordan et al. 2024): momentum, orthogonalised. The momentum of each matrix is replaced by the nearest matrix
// whose singular values are 1, roughly, by five Newton-Schulz steps in bf16; everything else is updated by AdamW. It
// has to see matrices whole (shard/whole_tensors.hpp): ranks that share a model orthogonalise a part of them each.
//
//   model.finalize(tessera::nn::Muon{.learning_rate = 3e-4f, .weight_decay = 0.1f});
//
// Values are those of torch.optim.Muon but for roundings: bf16 products are summed in fp32, and each of a step's two
// combinations is rounded once. A step, where X is a matrix of r rows and c columns (Keller Jordan's polynomial):
//   X = direction / max(|direction|, epsilon)      direction: kernels/muon.hpp; | |: Frobenius norm
//   five times: A = X Xᵀ (XᵀX where r > c);  B = b A + c A A;  X = a X + B X (X B)
//   master = master * (1 - lr * weight_decay) - (lr * scale) * X
// States: "momentum", of matrices; of everything else it is AdamW's first moment, and "v" the second, of which matrices
// have none.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/shard/optimizer.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

// An update of a matrix is scaled by this beside its learning rate, so that one rate serves matrices of all shapes.
enum class MuonScale {
  rms_of_adamw,  // 0.2 sqrt(max(rows, columns)): updates are as large as AdamW's, whose learning rates fit (Liu et al.
                 // 2025)
  original,      // sqrt(max(1, rows / columns)); PyTorch's default
};

struct Muon {
  float learning_rate = 1e-3f;  // of a step that is given no other; >= 0
  float momentum = 0.95f;       // in [0, 1)
  bool nesterov = true;
  float weight_decay = 0.1f;  // >= 0
  float epsilon = 1e-7f;      // > 0: the least norm that a direction is divided by
  MuonScale scale = MuonScale::rms_of_adamw;
  float clip_norm = 0.0f;  // the global gradient norm is clipped to it; 0: no clipping

  // Parameters that AdamW updates, beside all that are no matrices: shell patterns over full names (ParameterGroup).
  // Shapes do not tell embeddings and heads from other matrices, names do.
  std::vector<std::string> elementwise = {"*embed*", "*wte*",    "*wpe*",     "*position*", "*class_token*",
                                          "head.*",  "*.head.*", "*lm_head*", "output.*"};
  float adamw_learning_rate_scale = 1.0f;  // times the learning rate of the step; >= 0
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float adamw_epsilon = 1e-8f;

  std::vector<ParameterGroup> groups = {};  // of matrices, too, which take no betas and epsilon of theirs

  // The optimizer with these settings. Throws UsageError naming a setting that is out of range, and its value.
  operator std::unique_ptr<Optimizer>()
      const;  // NOLINT(google-explicit-constructor): settings stand for their optimizer
  operator std::shared_ptr<const Optimizer>() const;  // NOLINT(google-explicit-constructor): likewise, of some units
};

}  // namespace tessera::nn

#pragma GCC visibility pop
