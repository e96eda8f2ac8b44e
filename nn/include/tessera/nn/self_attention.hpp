// Self-attention as a layer: q, k and v from one linear layer, attention (attention.hpp), output projection.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/attention.hpp"
#include "tessera/nn/context.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/linear.hpp"
#include "tessera/nn/sequence_batch.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/module.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

struct SelfAttentionOptions {
  std::size_t dim;
  std::size_t heads;           // divides dim
  float projection_deviation;  // of the output projection's initial weights; the others have 0.02
  std::size_t drop_place;      // of the probabilities, for SequenceBatch::dropout_at
  bool causal = true;          // each row looks at the keys up to its own, not at all of its sequence
  Slices slices = {};          // of heads; their number divides these
  ContextParts parts = {};     // of sequences; so does theirs, times that of slices
};

template <Element T>
class SelfAttention final : public Module {
 public:
  // Weights start as normal(0, deviation), biases as zeros. Throws UsageError when heads do not divide dim.
  explicit SelfAttention(const SelfAttentionOptions& options);

  void visit(ModuleVisitor& visitor) override;  // "c_attn" [3 · dim, dim], "c_proj" [dim, dim]; "qkv", "out" of parts

  struct Saved {
    typename Linear<T>::Saved attn;
    typename Linear<T>::Saved proj;
    MatrixView<const T> qkv;  // [rows, 3 · dim], of whole sequences
    MatrixView<const T> out;  // [rows, dim]
    std::span<Arithmetic<T>> statistics;
    SequenceBatch sequences;
  };
  // x and y [rows, dim]: with slices, this rank's rows of the batch, with parts its positions. Throws UsageError when
  // the sequences' length does not divide the rows.
  Saved forward(Window& window, ActivationStack& stack, MatrixView<const T> x, Target<T> y,
                const SequenceBatch& sequences);
  void backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                MatrixView<T> dx);  // dx may be dy
  struct Between {
    typename Linear<T>::Between attn;
    typename Linear<T>::Between proj;
  };
  Between backward_input(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                         MatrixView<T> dx);  // dx is not dy
  void backward_parameters(Window& window, ActivationStack& stack, const Saved& saved, const Between& between);

 private:
  void attend_back(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<T> dout, MatrixView<T> dqkv);
  AttentionShape shape_of(std::size_t rows, const SequenceBatch& sequences) const;
  // The memory of this rank's rows, as that of its heads in whole sequences.
  MatrixView<T> of_heads(MatrixView<T> rows) const {
    return {rows.data, rows.rows * options_.parts.count, rows.columns / options_.parts.count};
  }

  std::size_t dim() const { return proj_.in(); }  // of this rank's slice

  SelfAttentionOptions options_;
  Linear<T> attn_;
  Linear<T> proj_;
  std::optional<ContextExchange<T>> exchange_qkv_, exchange_out_;  // in backward windows of their gradients
};

}  // namespace tessera::nn

#pragma GCC visibility pop
