// How the rows of a batch are sequences, and which dropout masks belong to them: what a transformer's layers are told
// about a pass, the same in forward, recomputation and backward.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tessera/nn/dropout.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

// Ranks along Axis::context have equal parts of every sequence's positions, one after the other (context.hpp).
struct ContextParts {
  std::size_t count = 1;  // ranks along it; 1: each has whole sequences
  std::size_t place = 0;  // this rank's along it
  std::size_t rows = 0;   // of the largest pass, on each of them
  bool in_two = false;    // as Slices::in_two

  bool any() const { return count > 1; }
};

struct SequenceBatch {
  std::size_t length = 1;   // rows of each, that this rank has; divides the rows of the batch
  std::size_t rows = 0;     // of the batch, where ranks have slices (slices.hpp) and this one has some of them
  ContextParts parts = {};  // of which this rank has one
  // For every place that drops: probability, seed, step, and the first row of whole sequences. Each place is a
  // key.layer of its own, which dropout_at() fills in. Probability 0 (evaluation): nothing is dropped.
  Dropout dropout = {};

  std::size_t first_position() const { return parts.place * length; }

  // `first`: the row of whole sequences that comes first in what drops.
  Dropout dropout_at(std::size_t place, std::size_t first = 0) const {
    Dropout result = dropout;
    result.key.layer = static_cast<std::uint16_t>(place);
    result.key.first_row += first;
    return result;
  }

  // Rows [first, first + count) of the batch drop: calls run(row, rows, dropout) for each stretch of them that is one
  // in whole sequences, too; `row` counts from `first`.
  template <typename Run>
  void drop_rows(std::size_t place, std::size_t first, std::size_t count, Run run) const {
    if (!parts.any()) return run(std::size_t{0}, count, dropout_at(place, first));
    for (std::size_t row = first; row < first + count;) {
      const std::size_t sequence = row / length, end = std::min(first + count, (sequence + 1) * length);
      run(row - first, end - row, dropout_at(place, row + sequence * length * (parts.count - 1) + first_position()));
      row = end;
    }
  }
};

}  // namespace tessera::nn

#pragma GCC visibility pop
