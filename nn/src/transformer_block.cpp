// GPT-2's transformer block.
#include "tessera/nn/transformer_block.hpp"

#include <cmath>

#include "src/operation.hpp"
#include "src/transformer_initial.hpp"

namespace tessera::nn {

namespace {

// So that the variance of the residual path, to which 2 · layers projections add, stays where it starts.
float projection_deviation(const TransformerShape& shape) {
  return transformer_deviation / std::sqrt(2.0f * static_cast<float>(shape.layers));
}

}  // namespace

template <Element T>
TransformerBlock<T>::TransformerBlock(const TransformerShape& shape, std::size_t index)
    : index_(index),
      slices_(shape.slices),
      ln_1_(shape.dim, shape.slices),
      attn_({.dim = shape.dim,
             .heads = shape.heads,
             .projection_deviation = projection_deviation(shape),
             .drop_place = 3 * index + 1,
             .causal = shape.causal,
             .slices = shape.slices,
             .parts = shape.parts}),
      ln_2_(shape.dim, shape.slices),
      mlp_({.dim = shape.dim,
            .hidden = shape.hidden == 0 ? 4 * shape.dim : shape.hidden,
            .projection_deviation = projection_deviation(shape),
            .slices = shape.slices}) {}

template <Element T>
void TransformerBlock<T>::visit(ModuleVisitor& visitor) {
  visitor("ln_1", ln_1_);
  visitor("attn", attn_);
  visitor("ln_2", ln_2_);
  visitor("mlp", mlp_);
}

template <Element T>
typename TransformerBlock<T>::Saved TransformerBlock<T>::forward(Window& window, ActivationStack& stack,
                                                                 MatrixView<const T> x, MatrixView<T> y,
                                                                 const SequenceBatch& sequences) {
  const auto normal_x = stack.push<T>(x.rows, x.columns);
  const auto h = stack.push<T>(x.rows, x.columns);
  const auto normal_h = stack.push<T>(x.rows, x.columns);
  // Where nothing is dropped, a projection's product adds the residual itself.
  const bool drops = sequences.dropout.probability != 0.0f;
  const auto onto = [&](MatrixView<T> to, MatrixView<const T> residual) {
    return drops ? Target<T>(to) : Target<T>(to, residual);
  };
  const auto add_dropped_to = [&](MatrixView<T> to, MatrixView<const T> residual, std::size_t place) {
    if (!drops) return;
    sequences.drop_rows(
        place, first_row(sequences), to.rows, [&](std::size_t row, std::size_t rows, const Dropout& dropout) {
          const MatrixView<T> stretch = to.from_row(row, rows);
          enqueue(window, add_dropped<T>,
                  {.residual = residual.from_row(row, rows), .x = stretch, .y = stretch, .dropout = dropout});
        });
  };
  Saved saved;
  saved.sequences = sequences;
  saved.ln_1 = ln_1_.forward(window, stack, x, normal_x);
  saved.attn = attn_.forward(window, stack, normal_x, onto(h, x), sequences);
  add_dropped_to(h, x, attention_place());
  saved.ln_2 = ln_2_.forward(window, stack, h, normal_h);
  saved.mlp = mlp_.forward(window, stack, normal_h, onto(y, h), sequences.rows);
  add_dropped_to(y, h, mlp_place());
  return saved;
}

template <Element T>
void TransformerBlock<T>::backward(Window& window, ActivationStack& stack, const Saved& saved, MatrixView<T> gradient) {
  const ScratchScope scope(stack);
  const auto branch = stack.push<T>(gradient.rows, gradient.columns);
  // The gradient of drop(x), given that of drop(x) + residual, which it is where nothing is dropped.
  const auto of = [&](std::size_t place) -> MatrixView<const T> {
    if (saved.sequences.dropout.probability == 0.0f) return gradient;
    drop_rows<T>(window, saved.sequences, place, first_row(saved.sequences), gradient, branch);
    return branch;
  };
  mlp_.backward(window, stack, saved.mlp, of(mlp_place()), branch);
  ln_2_.add_backward(window, stack, saved.ln_2, branch, gradient);
  attn_.backward(window, stack, saved.attn, of(attention_place()), branch);
  ln_1_.add_backward(window, stack, saved.ln_1, branch, gradient);
}

// Every gradient that a parameter's is formed from has a place of its own.
template <Element T>
typename TransformerBlock<T>::Between TransformerBlock<T>::backward_input(Window& window, ActivationStack& stack,
                                                                          const Saved& saved, MatrixView<T> gradient) {
  const auto of = [&](std::size_t place) {
    const auto to = stack.push<T>(gradient.rows, gradient.columns);
    drop_rows<T>(window, saved.sequences, place, first_row(saved.sequences), gradient, to);
    return to;
  };
  Between between;
  const auto dnormal_h = stack.push<T>(gradient.rows, gradient.columns);
  between.mlp = mlp_.backward_input(window, stack, saved.mlp, of(mlp_place()), dnormal_h);
  between.ln_2 = ln_2_.add_backward_input(window, stack, saved.ln_2, dnormal_h, gradient);
  const auto dnormal_x = stack.push<T>(gradient.rows, gradient.columns);
  between.attn = attn_.backward_input(window, stack, saved.attn, of(attention_place()), dnormal_x);
  between.ln_1 = ln_1_.add_backward_input(window, stack, saved.ln_1, dnormal_x, gradient);
  return between;
}

template <Element T>
void TransformerBlock<T>::backward_parameters(Window& window, ActivationStack& stack, const Saved& saved,
                                              const Between& between) {
  mlp_.backward_parameters(window, stack, saved.mlp, between.mlp);
  ln_2_.backward_parameters(window, stack, saved.ln_2, between.ln_2);
  attn_.backward_parameters(window, stack, saved.attn, between.attn);
  ln_1_.backward_parameters(window, stack, saved.ln_1, between.ln_1);
}

#define TESSERA_TRANSFORMER_BLOCK(T) template class TransformerBlock<T>;
TESSERA_FOR_EACH_ELEMENT(TESSERA_TRANSFORMER_BLOCK)

}  // namespace tessera::nn
