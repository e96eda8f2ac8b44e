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
  // For every place that drops: probability, seed, step and first row. Each place is a key.layer of its own, which
  // dropout_at() fills in. Probability 0 (evaluation): nothing is dropped.
  Dropout dropout = {};

  Dropout dropout_at(std::size_t place) const {
    Dropout result = dropout;
    result.key.layer = static_cast<std::uint16_t>(place);
    return result;
  }
};

}  // namespace tessera::nn

#pragma GCC visibility pop
