// Self-attention as a layer.
#include "tessera/nn/self_attention.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "src/operation.hpp"
#include "src/transformer_initial.hpp"
#include "tessera/base/error.hpp"

namespace tessera::nn {

template <Element T>
SelfAttention<T>::SelfAttention(const SelfAttentionOptions& options)
    : options_(options),
      attn_(options.dim, 3 * options.dim, normal_weights(transformer_deviation, options.slices, LinearCut::outputs, 3)),
      proj_(options.dim, options.dim, normal_weights(options.projection_deviation, options.slices, LinearCut::inputs)) {
  if (options.heads == 0 || options.dim % options.heads != 0) {
    throw UsageError(
        fmt::format("attention: heads must divide dim, but {} does not divide {}", options.heads, options.dim));
  }
  if (options.heads > std::numeric_limits<std::uint16_t>::max()) {
    throw UsageError(fmt::format("attention: {} heads are more than 65535", options.heads));
  }
  if (options.heads % options.slices.count != 0) {
    throw UsageError(
        fmt::format("attention: {} slices do not divide its {} heads", options.slices.count, options.heads));
  }
  if (!options.parts.any()) return;
  if (options.heads / options.slices.count % options.parts.count != 0) {
    throw UsageError(fmt::format("attention: {} ranks along context do not divide the {} heads that each has",
                                 options.parts.count, options.heads / options.slices.count));
  }
  exchange_qkv_.emplace(options.parts, 3 * dim(), 3);
  exchange_out_.emplace(options.parts, dim(), 1);
}

template <Element T>
void SelfAttention<T>::visit(ModuleVisitor& visitor) {
  visitor("c_attn", attn_);
  if (exchange_qkv_) exchange_qkv_->visit(visitor, "qkv");
  if (exchange_out_) exchange_out_->visit(visitor, "out");
  visitor("c_proj", proj_);
}

template <Element T>
AttentionShape SelfAttention<T>::shape_of(std::size_t rows, const SequenceBatch& sequences) const {
  if (sequences.length == 0 || rows % sequences.length != 0) {
    throw UsageError(fmt::format("attention: {} rows are no whole number of sequences of {}", rows, sequences.length));
  }
  const std::size_t of_slice = options_.heads / options_.slices.count, heads = of_slice / options_.parts.count;
  return {.sequences = rows / sequences.length,
          .sequence = sequences.length * options_.parts.count,
          .heads = heads,
          .head_dim = options_.dim / options_.heads,
          .causal = options_.causal,
          .heads_of_mask = static_cast<std::uint16_t>(options_.heads),
          .first_head = static_cast<std::uint16_t>(of_slice * options_.slices.place + heads * options_.parts.place)};
}

template <Element T>
typename SelfAttention<T>::Saved SelfAttention<T>::forward(Window& window, ActivationStack& stack,
                                                           MatrixView<const T> x, Target<T> y,
                                                           const SequenceBatch& sequences) {
  const std::size_t rows = options_.slices.any() ? sequences.rows : x.rows;
  const AttentionShape shape = shape_of(rows, sequences);
  const auto of_rows = stack.push<T>(rows, 3 * dim());
  const auto all_out = stack.push<T>(rows, dim());
  const auto out = exchange_out_ ? of_heads(stack.push<T>(rows, dim())) : all_out;
  const auto statistics = stack.push<Arithmetic<T>>(shape.statistics());
  const auto saved_attn = attn_.forward(window, stack, x, of_rows);
  const auto qkv = of_heads(of_rows);
  if (exchange_qkv_) exchange_qkv_->to_heads(window, of_rows, qkv, sequences.length);
  {
    const ScratchScope scratch(stack);
    const auto room = stack.push<Arithmetic<T>>(attention_forward_scratch<T>(shape, device_of(window, stack)));
    enqueue(window, attention_forward<T>,
            {.shape = shape,
             .qkv = qkv,
             .out = out,
             .statistics = statistics.data(),
             .dropout = sequences.dropout_at(options_.drop_place),
             .scratch = room.data()});
  }
  if (exchange_out_) exchange_out_->to_positions(window, out, all_out, sequences.length);
  return {.attn = saved_attn,
          .proj = proj_.forward(window, stack, all_out, y),
          .qkv = qkv,
          .out = out,
          .statistics = statistics,
          .sequences = sequences};
}

template <Element T>
void SelfAttention<T>::backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                                MatrixView<T> dx) {
  const ScratchScope scope(stack);
  const std::size_t rows = saved.proj.x.rows;
  const auto dqkv = stack.push<T>(rows, 3 * dim());
  {
    const ScratchScope scratch(stack);
    const auto dout = stack.push<T>(rows, dim());
    proj_.backward(window, stack, saved.proj, dy, dout);
    attend_back(window, stack, saved, dout, dqkv);
  }
  attn_.backward(window, stack, saved.attn, dqkv, dx);
}

// Both gradients are of this rank's rows, and in between of its heads.
template <Element T>
void SelfAttention<T>::attend_back(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<T> dout,
                                   MatrixView<T> dqkv) {
  const AttentionShape shape = shape_of(dout.rows, saved.sequences);
  const ScratchScope scratch(stack);
  const auto room = stack.push<Arithmetic<T>>(attention_backward_scratch<T>(shape, device_of(window, stack)));
  if (exchange_out_) exchange_out_->to_heads(window, dout, of_heads(dout), saved.sequences.length);
  enqueue(window, attention_backward<T>,
          {.shape = shape,
           .qkv = saved.qkv,
           .statistics = saved.statistics.data(),
           .out = saved.out,
           .dout = of_heads(dout),
           .dqkv = of_heads(dqkv),
           .dropout = saved.sequences.dropout_at(options_.drop_place),
           .scratch = room.data()});
  if (exchange_qkv_) exchange_qkv_->to_positions(window, of_heads(dqkv), dqkv, saved.sequences.length);
}

template <Element T>
typename SelfAttention<T>::Between SelfAttention<T>::backward_input(Window& window, ActivationStack& stack,
                                                                    const Saved& saved, MatrixView<const T> dy,
                                                                    MatrixView<T> dx) {
  require_two_passes(options_.parts.any(), options_.parts.in_two);
  const std::size_t rows = saved.proj.x.rows;
  const auto dqkv = stack.push<T>(rows, 3 * dim());
  Between between;
  {
    const ScratchScope scratch(stack);
    const auto dout = stack.push<T>(rows, dim());
    between.proj = proj_.backward_input(window, stack, saved.proj, dy, dout);
    attend_back(window, stack, saved, dout, dqkv);
  }
  between.attn = attn_.backward_input(window, stack, saved.attn, dqkv, dx);
  return between;
}

template <Element T>
void SelfAttention<T>::backward_parameters(Window& window, ActivationStack& stack, const Saved& saved,
                                           const Between& between) {
  proj_.backward_parameters(window, stack, saved.proj, between.proj);
  attn_.backward_parameters(window, stack, saved.attn, between.attn);
}

#define TESSERA_SELF_ATTENTION(T) template class SelfAttention<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_SELF_ATTENTION)

}  // namespace tessera::nn
