// How the rows of a batch are sequences, and which dropout masks belong to them: what a transformer's layers are told
// about a pass, the same in forward, recomputation and backward.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/nn/dropout.hpp"

#pragma GCC visibility push(default)

namespace tessera::nn {

struct SequenceBatch {
  std::size_t length = 1;  // rows of each; divides the rows of the batch
  std::size_t rows = 0;    // of the batch, where ranks have slices (slices.hpp) and this one has some of them
  // For every place that drops: probability, seed, step and first row. Each place is a key.layer of its own, which
  // dropout_at() fills in. Probability 0 (evaluation): nothing is dropped.
  Dropout dropout = {};

  // `first`: the row of the batch that comes first in what drops.
  Dropout dropout_at(std::size_t place, std::size_t first = 0) const {
    Dropout result = dropout;
    result.key.layer = static_cast<std::uint16_t>(place);
    result.key.first_row += first;
    return result;
  }
};

}  // namespace tessera::nn

#pragma GCC visibility pop
