// GPT-2's transformer block (Radford et al. 2019), normalised before each part:
//   h = x + drop(attention(ln_1(x)));   y = h + drop(mlp(ln_2(h)))
// Parameters have GPT-2's names and initial values. Weights are [out, in], the transpose of what GPT-2's files hold.
//
// Activation checkpointing: with a ScratchScope around forward(), only y stays; a recompute window later runs forward()
// again, on the same x and with the same SequenceBatch, and gives the same bits, dropout included.
#pragma once

#include <cstddef>

#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/feed_forward.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/layer_norm.hpp"
#include "tessera/nn/self_attention.hpp"
#include "tessera/nn/sequence_batch.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/module.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

struct TransformerShape {
  std::size_t dim;
  std::size_t heads;  // divides dim
  std::size_t layers =
      1;  // of the whole model: each block's two output projections start as normal(0, 0.02 / √(2 · layers))
  std::size_t hidden = 0;  // of the feed-forward network; 0: 4 · dim
  bool causal = true;  // as a language model's; false: rows look at their whole sequence, as in a vision transformer
  Slices slices = {};  // of heads and of hidden values, whose number divides the former, and of rows
  ContextParts parts = {};  // of sequences, whose number divides the heads of a slice
};

template <Element T>
class TransformerBlock final : public Module {
 public:
  // index: of this block in its model, from 0. It tells the dropout masks of blocks apart (places 3 · index + 1 to
  // 3 · index + 3).
  TransformerBlock(const TransformerShape& shape, std::size_t index);

  // "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj", with "weight" and "bias" each
  void visit(ModuleVisitor& visitor) override;

  struct Saved {
    typename LayerNorm<T>::Saved ln_1;
    typename SelfAttention<T>::Saved attn;
    typename LayerNorm<T>::Saved ln_2;
    typename FeedForward<T>::Saved mlp;
    SequenceBatch sequences;
  };
  // x and y [rows, dim]; with slices, this rank's of the batch's rows (SequenceBatch::rows), and with parts its
  // positions (SequenceBatch::parts).
  Saved forward(Window& window, ActivationStack& stack, MatrixView<const T> x, MatrixView<T> y,
                const SequenceBatch& sequences);
  // The gradient of y becomes that of x, in its place.
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<T> gradient);
  // 11 matrices of the size of x are left between the two passes, beside what forward saved.
  struct Between {
    typename FeedForward<T>::Between mlp;
    typename LayerNorm<T>::Between ln_2;
    typename SelfAttention<T>::Between attn;
    typename LayerNorm<T>::Between ln_1;
  };
  Between backward_input(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<T> gradient);
  void backward_parameters(Window& window, ActivationStack& stack, const Saved& saved, const Between& between);

 private:
  std::size_t first_row(const SequenceBatch& sequences) const { return slices_.rows_of(sequences.rows).first; }
  std::size_t attention_place() const { return 3 * index_ + 2; }
  std::size_t mlp_place() const { return 3 * index_ + 3; }

  std::size_t index_;
  Slices slices_;
  LayerNorm<T> ln_1_;
  SelfAttention<T> attn_;
  LayerNorm<T> ln_2_;
  FeedForward<T> mlp_;
};

}  // namespace tessera::nn

#pragma GCC visibility pop
