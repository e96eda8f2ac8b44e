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
}

template <Element T>
void SelfAttention<T>::visit(ModuleVisitor& visitor) {
  visitor("c_attn", attn_);
  visitor("c_proj", proj_);
}

template <Element T>
AttentionShape SelfAttention<T>::shape_of(std::size_t rows, const SequenceBatch& sequences) const {
  if (sequences.length == 0 || rows % sequences.length != 0) {
    throw UsageError(fmt::format("attention: {} rows are no whole number of sequences of {}", rows, sequences.length));
  }
  return {.sequences = rows / sequences.length,
          .sequence = sequences.length,
          .heads = options_.heads / options_.slices.count,
          .head_dim = options_.dim / options_.heads,
          .causal = options_.causal,
          .heads_of_mask = static_cast<std::uint16_t>(options_.heads),
          .first_head = static_cast<std::uint16_t>(options_.heads / options_.slices.count * options_.slices.place)};
}

template <Element T>
typename SelfAttention<T>::Saved SelfAttention<T>::forward(Window& window, ActivationStack& stack,
                                                           MatrixView<const T> x, Target<T> y,
                                                           const SequenceBatch& sequences) {
  const std::size_t rows = options_.slices.any() ? sequences.rows : x.rows;
  const AttentionShape shape = shape_of(rows, sequences);
  const auto qkv = stack.push<T>(rows, 3 * dim());
  const auto out = stack.push<T>(rows, dim());
  const auto statistics = stack.push<Arithmetic<T>>(shape.statistics());
  const auto saved_attn = attn_.forward(window, stack, x, qkv);
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
  return {.attn = saved_attn,
          .proj = proj_.forward(window, stack, out, y),
          .qkv = qkv,
          .statistics = statistics,
          .sequences = sequences};
}

template <Element T>
void SelfAttention<T>::backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dy,
                                MatrixView<T> dx) {
  const ScratchScope scope(stack);
  const auto dqkv = stack.push<T>(saved.qkv.rows, 3 * dim());
  {
    const ScratchScope scratch(stack);
    const auto dout = stack.push<T>(saved.qkv.rows, dim());
    proj_.backward(window, stack, saved.proj, dy, dout);
    attend_back(window, stack, saved, dout, dqkv);
  }
  attn_.backward(window, stack, saved.attn, dqkv, dx);
}

template <Element T>
void SelfAttention<T>::attend_back(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<const T> dout,
                                   MatrixView<T> dqkv) {
  const AttentionShape shape = shape_of(saved.qkv.rows, saved.sequences);
  const ScratchScope scratch(stack);
  const auto room = stack.push<Arithmetic<T>>(attention_backward_scratch<T>(shape, device_of(window, stack)));
  enqueue(window, attention_backward<T>,
          {.shape = shape,
           .qkv = saved.qkv,
           .statistics = saved.statistics.data(),
           .out = saved.proj.x,
           .dout = dout,
           .dqkv = dqkv,
           .dropout = saved.sequences.dropout_at(options_.drop_place),
           .scratch = room.data()});
}

template <Element T>
typename SelfAttention<T>::Between SelfAttention<T>::backward_input(Window& window, ActivationStack& stack,
                                                                    const Saved& saved, MatrixView<const T> dy,
                                                                    MatrixView<T> dx) {
  const auto dqkv = stack.push<T>(saved.qkv.rows, 3 * dim());
  Between between;
  {
    const ScratchScope scratch(stack);
    const auto dout = stack.push<T>(saved.qkv.rows, dim());
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
