// Random permutations that are the same on every machine: a function of (size, seed, stream). `stream` tells those of
// one seed apart (an epoch, say).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::data {

// Computed, element by element: of any size in a few bytes. Elements cost some tens of nanoseconds each.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t stream);

  std::uint64_t operator[](std::uint64_t place) const;  // place < size; what it returns, too

 private:
  static constexpr std::size_t rounds = 12;

  std::uint64_t size_;
  unsigned low_bits_;
  unsigned high_bits_;
  std::array<std::uint64_t, rounds> keys_;
};

// Stored: order becomes a permutation of 0 … order.size() - 1. Another one than Permutation's.
void permute(std::span<std::size_t> order, std::uint64_t seed, std::uint64_t stream);

}  // namespace tessera::data
