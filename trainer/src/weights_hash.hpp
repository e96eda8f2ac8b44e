// The hash of a model's weights after a step, tensor by tensor: what --hash-weights adds to the lines of --metrics, and
// `tessera verify-bits` compares. It depends on the bits of the fp32 masters and on their places alone, not on ranks,
// strategies or the order in which elements are visited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/shard/fully_shard.hpp"
#include "tessera/trainer/step_metrics.hpp"

namespace tessera::trainer {

// Every parameter, in the order of units. A parameter of which each replica has its own counts as one tensor, in which
// they stand one behind the other. Each element is hashed by the one rank whose piece it is in, so that ranks only add
// up a number for each tensor. Between steps. Collective; synchronises.
std::vector<TensorHash> hash_weights(tessera::FullyShard& model);

// One hash of all, which tells tensors apart by their names.
std::uint64_t whole_hash(std::span<const TensorHash> tensors);

// A tensor's hash is the sum modulo 2^64 of a mixed function of (place, bits) over its elements; this is the part of
// elements [first, first + values.size()).
std::uint64_t hash_elements(std::size_t first, std::span<const float> values);

}  // namespace tessera::trainer
