// A rank's part of the held-out samples, cut into passes. Every rank makes the same number of passes, also with a
// shorter slice than others', or none.
#pragma once

#include <cstddef>

#include "tessera/comm/world.hpp"
#include "tessera/data/sampler.hpp"

namespace examples {

class HeldOutSlice {
 public:
  // Of samples 0 … count - 1; rows: of one pass at most.
  HeldOutSlice(std::size_t count, const tessera::World& world, std::size_t rows);

  std::size_t passes() const { return passes_; }
  // The samples of a pass, offset by `first`; there may be none.
  const tessera::SampleBatch& samples(std::size_t pass, std::size_t first);

 private:
  std::size_t rows_;
  std::size_t begin_;
  std::size_t end_;
  std::size_t passes_;
  tessera::SampleBatch chosen_;
};

}  // namespace examples
