// A step's samples in granules, whose number and contents do not depend on the number of ranks. Each granule is one
// micro-batch, and sums take granules one after the other (docs/numerics.md), so any number of ranks has the same bits.
#pragma once

#include <cstddef>

#pragma GCC visibility push(default)

namespace tessera {

// How a step's granules are dealt: of `ranks` ranks the one at place `rank` computes granule `rank` in the first round,
// ranks + rank in the second, and so on. Where ranks do not divide granules, the last of them have none in the last
// round, and bring nothing to it.
struct Granules {
  std::size_t total = 0;  // of a step; 0: the model has none
  std::size_t ranks = 1;  // at most `total`
  std::size_t rank = 0;

  std::size_t rounds() const { return (total + ranks - 1) / ranks; }
  std::size_t mine() const { return (total + ranks - 1 - rank) / ranks; }  // of this rank in a step
  std::size_t number(std::size_t round) const { return round * ranks + rank; }
};

}  // namespace tessera

#pragma GCC visibility pop
