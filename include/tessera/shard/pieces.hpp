// Pieces are what one rank holds of named tensors: the terms in which hooks, inspection and checkpoints speak of
// shards.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "tessera/device/stream.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/shard/parameter.hpp"

#pragma GCC visibility push(default)

namespace tessera {

class Unit;

// Elements [first, first + values.size()) of one parameter as this rank has it, a slice, say (ParameterOptions::slice),
// in fp32, in the memory of the model's device, unless who hands it out says otherwise.
struct ParameterPiece {
  const Parameter* parameter;
  std::size_t first;
  std::span<float> values;
};

// Values from the first one on of the masters of one parameter, or of a state of it, in the type in which they are kept
// (plan::StateSpec); in the memory of the model's device.
struct StatePiece {
  const Parameter* parameter;
  std::size_t first;
  std::span<std::byte> bytes;
};

// A hook on reduced gradients gets this. The hook runs once per step and unit that trains, after the last reduction and
// before norm and clipping; whatever it writes counts. Nothing may outlive the call but work enqueued on `stream`,
// which must not look at host memory that changes.
struct ReducedGradient {
  const Unit& unit;
  // This rank's shard: the sum over ranks and micro-batches divided by how many these are by the options, times
  // loss_scale. What ranks brought other than that (weights, fewer micro-batches, nothing) is put right in the update.
  std::span<const ParameterPiece> pieces;
  const float* loss_scale;  // in the device's memory
  Stream& stream;
};
using GradientHook = std::function<void(const ReducedGradient&)>;

// Bytes of the arena of one category, at the address at which they stand, so that others can measure them.
struct MemoryRegion {
  plan::Category category;
  std::span<const std::byte> memory;
  MemorySpace space;
};

}  // namespace tessera

#pragma GCC visibility pop
