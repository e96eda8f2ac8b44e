// Pieces are what one rank holds of named tensors: the terms in which hooks, inspection and checkpoints speak of
// shards.
#pragma once

#include <cstddef>
#include <span>

#include "tessera/shard/parameter.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// Elements [first, first + values.size()) of one parameter, in fp32, in the memory of the model's device, unless who
// hands it out says otherwise.
struct ParameterPiece {
  const Parameter* parameter;
  std::size_t first;
  std::span<float> values;
};

}  // namespace tessera

#pragma GCC visibility pop
