// The units of a GPT as its passes see them: activations are T, whatever type a unit itself computes in. Each keeps
// what its last forward saved for its next backward, of every micro-batch that is on its way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "models/gpt/shape.hpp"
#include "models/unit_of_places.hpp"
#include "tessera/kernels/elementwise.hpp"
#include "tessera/nn/activation_stack.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/sequence_batch.hpp"
#include "tessera/nn/slices.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/module.hpp"

namespace models {

// Sequences of tokens, all of the same length, one after the other; where ranks have parts of them, this rank's.
struct TokenRows {
  std::span<const std::int32_t> ids;  // may be empty
  std::size_t sequence = 1;           // tokens of each
  std::size_t behind = 0;             // of a sequence that is to go on: so many at its end only fill up
};

// Answers are the targets of rows of logits, and where their mean loss goes.
struct Answers {
  std::span<const std::int32_t> targets;
  float* loss = nullptr;
  std::span<const float> weights = {};  // of targets, 0 where they only fill up; empty: 1
};

// "blocks.N" and "final". x, y and gradient are [tokens, dim]; where ranks have slices, those of a block are this
// rank's tokens, and the last norm makes them all again, and its backward takes the sum of all ranks' gradients.
template <typename T>
class HiddenUnit : public UnitOfPlaces {
 public:
  // Pushes what backward needs, unless the unit recomputes; x must stay until then.
  virtual void forward(tessera::Window& window, tessera::nn::ActivationStack& stack, tessera::nn::MatrixView<const T> x,
                       tessera::nn::MatrixView<T> y, const tessera::nn::SequenceBatch& sequences) = 0;
  // The gradient of y becomes that of x.
  virtual void backward(tessera::Window& window, tessera::nn::ActivationStack& stack,
                        tessera::nn::MatrixView<T> gradient) = 0;
  // The same in two passes, of which the first pushes what the second forms the parameters' gradients from.
  virtual void backward_input(tessera::Window& window, tessera::nn::ActivationStack& stack,
                              tessera::nn::MatrixView<T> gradient) = 0;
  virtual void backward(tessera::Window& window, tessera::nn::ActivationStack& stack) = 0;
};

// A type of its own tells what the head's backward writes from the embedding's.
template <typename T>
struct HeadGradient {
  tessera::nn::MatrixView<T> dx;  // [tokens, dim]
};

// The same of a head whose embedding is another rank's: gradients of what that reads alone are zero.
template <typename T>
struct TiedHeadGradient {
  tessera::nn::MatrixView<T> dx;
};

// The rest of it, where its input's gradient was formed before.
struct TiedHeadTable {};

// Ranks with slices share the rows between the embedding and the blocks: y are this rank's rows of the sum of all x.
template <typename T>
class SpreadUnit : public tessera::Module {
 public:
  virtual void forward(tessera::Window& window, tessera::nn::MatrixView<const T> x, tessera::nn::MatrixView<T> y,
                       const tessera::nn::SequenceBatch& sequences) = 0;
  virtual void backward(tessera::Window& window, tessera::nn::MatrixView<T> dy, tessera::nn::MatrixView<T> dx,
                        const tessera::nn::SequenceBatch& sequences) = 0;  // overwrites dy
};

// Ranks with slices make one loss of their logits, in windows between the head's.
class LossUnit : public tessera::Module {
 public:
  virtual void forward(tessera::Window& window) = 0;  // the loss of the logits that the head has left
  // A row of logits of all ids, from those of this rank's.
  virtual void forward(tessera::Window& window, tessera::nn::MatrixView<const float> mine,
                       tessera::nn::MatrixView<float> logits) = 0;
};

// "embedding": tables of tokens and positions. The token table is the output head, too, in windows of its own.
template <typename T>
class EmbeddingUnit : public UnitOfPlaces {
 public:
  using Ids = std::span<const std::int32_t>;

  // y: [ids, dim]. The ids must stay until backward has run.
  virtual void forward(tessera::Window& window, tessera::nn::ActivationStack& stack, Ids ids,
                       tessera::nn::MatrixView<T> y, const tessera::nn::SequenceBatch& sequences) = 0;
  virtual void backward(tessera::Window& window, tessera::nn::ActivationStack& stack,
                        tessera::nn::MatrixView<T> dy) = 0;  // overwrites dy

  // The head. Pushes the logits and what backward needs; x [tokens, dim] must stay until then.
  virtual void forward(tessera::Window& window, tessera::nn::ActivationStack& stack, tessera::nn::MatrixView<const T> x,
                       const Answers& answers) = 0;
  virtual void backward(tessera::Window& window, tessera::nn::ActivationStack& stack,
                        const HeadGradient<T>& gradient) = 0;
  virtual void backward(tessera::Window& window, tessera::nn::ActivationStack& stack,
                        const TiedHeadGradient<T>& gradient) = 0;
  virtual void backward_input(tessera::Window& window, tessera::nn::ActivationStack& stack,
                              const TiedHeadGradient<T>& gradient) = 0;
  virtual void backward(tessera::Window& window, tessera::nn::ActivationStack& stack, const TiedHeadTable& rest) = 0;
  // The logits alone: [rows of x, vocabulary], or this rank's slice of it.
  virtual void forward(tessera::Window& window, tessera::nn::ActivationStack& stack, tessera::nn::MatrixView<const T> x,
                       tessera::nn::MatrixView<float> logits) = 0;
  virtual LossUnit* loss() = 0;  // null where ranks have no slices
};

// Pushes the logits that follow the last of the rows that the head reads but for `behind` more: [1, vocabulary], or
// nothing without rows. In evaluate windows of the head, and of the loss where ranks have slices.
template <typename T, typename Model>
tessera::nn::MatrixView<float> push_next_logits(Model& model, EmbeddingUnit<T>& head,
                                                tessera::nn::ActivationStack& stack, const GptShape& shape,
                                                tessera::nn::MatrixView<const T> x, std::size_t behind);

template <typename T>
std::unique_ptr<EmbeddingUnit<T>> make_embedding(const GptShape& shape);
template <typename T>
std::unique_ptr<HiddenUnit<T>> make_block(const GptShape& shape, std::size_t index);  // from 0
template <typename T>
std::unique_ptr<HiddenUnit<T>> make_final(const GptShape& shape);
template <typename T>
std::unique_ptr<SpreadUnit<T>> make_spread(const GptShape& shape);  // null where ranks have no slices

inline tessera::nn::Slices slices_of(const GptShape& shape) {
  return {.count = shape.slices,
          .place = shape.slice,
          .rows = shape.batch * shape.positions(),
          .in_two = shape.goes_back_in_two};
}
inline tessera::nn::ContextParts parts_of(const GptShape& shape) {
  return {.count = shape.contexts,
          .place = shape.context,
          .rows = shape.batch * shape.positions(),
          .in_two = shape.goes_back_in_two};
}

template <typename T, typename Model>
tessera::nn::MatrixView<float> push_next_logits(Model& model, EmbeddingUnit<T>& head,
                                                tessera::nn::ActivationStack& stack, const GptShape& shape,
                                                tessera::nn::MatrixView<const T> x, std::size_t behind) {
  x = x.rows == 0 ? x : x.from_row(x.rows - 1 - behind, 1);
  const tessera::nn::MatrixView<float> logits = stack.push<float>(x.rows, shape.vocabulary);
  if (head.loss() == nullptr) {
    model.evaluate(head, stack, x, logits);
    return logits;
  }
  const tessera::nn::Slices slices = slices_of(shape);
  const std::size_t each = slices.part(shape.vocabulary);
  const auto mine = stack.push<float>(x.rows, slices.part_of(shape.vocabulary, each).count);
  model.evaluate(head, stack, x, mine);
  model.evaluate(*head.loss(), mine, logits);
  return logits;
}

// Activations of one type for a unit that computes in another. Where the types are the same, nothing is copied.

// to = from, element by element.
template <typename From, typename To>
void deliver(tessera::Window& window, tessera::nn::MatrixView<From> from, tessera::nn::MatrixView<To> to) {
  using Source = std::remove_const_t<From>;
  if constexpr (!std::is_same_v<Source, To>) {
    tessera::nn::enqueue(window, tessera::kernels::cast, {to.data, tessera::dtype_of<To>},
                         {from.data, tessera::dtype_of<Source>}, from.elements());
  }
}

// A place for what is delivered to `y`, or from it: y itself, or memory that is pushed.
template <typename P, typename T>
tessera::nn::MatrixView<P> place_for(tessera::nn::ActivationStack& stack, tessera::nn::MatrixView<T> y) {
  if constexpr (std::is_same_v<P, T>) {
    return y;
  } else {
    return stack.push<P>(y.rows, y.columns);
  }
}

// x as P: x itself, or a copy that is pushed.
template <typename P, typename T>
tessera::nn::MatrixView<const P> read_as(tessera::Window& window, tessera::nn::ActivationStack& stack,
                                         tessera::nn::MatrixView<const T> x) {
  if constexpr (std::is_same_v<P, T>) {
    return x;
  } else {
    const tessera::nn::MatrixView<P> copy = stack.push<P>(x.rows, x.columns);
    deliver(window, x, copy);
    return copy;
  }
}

}  // namespace models
