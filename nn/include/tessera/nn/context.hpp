// Context parallelism (Jacobs et al. 2023, DeepSpeed-Ulysses): ranks along Axis::context have equal parts of every
// sequence's positions, and the same parameters. All layers but attention work on each row by itself. Around attention
// ranks exchange, in its windows, all heads of their positions for some heads of all positions, so that each attends in
// whole sequences. What travels is moved alone, and rounded nowhere.
//
// Parameters are sharded and summed over these ranks as over those with other samples, and a loss is the mean of the
// rank's own positions, so that means over ranks are means over tokens.
#pragma once

#include <cstddef>
#include <string_view>

#include "tessera/nn/dropout.hpp"
#include "tessera/nn/element.hpp"
#include "tessera/nn/layer.hpp"
#include "tessera/nn/sequence_batch.hpp"
#include "tessera/nn/view.hpp"
#include "tessera/shard/collective.hpp"
#include "tessera/shard/module.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

// y = drop(x), of the rows of the batch from `first` on. y may be x.
template <Element T>
void drop_rows(Window& window, const SequenceBatch& sequences, std::size_t place, std::size_t first,
               MatrixView<const T> x, MatrixView<T> y) {
  sequences.drop_rows(place, first, x.rows, [&](std::size_t row, std::size_t rows, const Dropout& dropout) {
    enqueue(window, nn::dropout<T>, dropout, x.from_row(row, rows), y.from_row(row, rows));
  });
}

// The exchange of matrices of one width, once in each window that forms outputs or gradients of inputs. A row holds
// `blocks` blocks (q, k and v, say), in each of them the heads one after the other.
template <Element T>
class ContextExchange {
 public:
  // columns: of a row of all heads, a multiple of blocks x parts.
  ContextExchange(const ContextParts& parts, std::size_t columns, std::size_t blocks);

  void visit(ModuleVisitor& visitor, std::string_view name) { visitor(name, collective_); }

  // x [rows, columns], this rank's positions of every sequence, `length` of each, becomes y [rows x parts,
  // columns / parts], its heads at all positions. y may have the memory of x. Throws UsageError for more rows than
  // those of the largest pass.
  void to_heads(Window& window, MatrixView<const T> x, MatrixView<T> y, std::size_t length);
  // The other way round.
  void to_positions(Window& window, MatrixView<const T> x, MatrixView<T> y, std::size_t length);

 private:
  struct Chunks;
  Chunks of_positions(std::size_t rows) const;
  Chunks of_heads(std::size_t rows, std::size_t length) const;
  void exchange(Window& window, MatrixView<const T> x, const Chunks& going, MatrixView<T> y, const Chunks& coming);

  ContextParts parts_;
  std::size_t columns_;
  std::size_t blocks_;
  Collective collective_;
};

}  // namespace tessera::nn

#pragma GCC visibility pop
