// Random permutations that are the same on every machine: a function of (size, seed, stream).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::data {

// order becomes a permutation of 0 … order.size() - 1. `stream` tells permutations of one seed apart (an epoch, say).
void permute(std::span<std::size_t> order, std::uint64_t seed, std::uint64_t stream);

}  // namespace tessera::data
