// Slices differ by one sample at most, so the longest slice decides the number of passes.
#include "common/held_out_slice.hpp"

#include <algorithm>
#include <numeric>

namespace examples {

HeldOutSlice::HeldOutSlice(std::size_t count, const tessera::World& world, std::size_t rows) : rows_(rows) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto rank = static_cast<std::size_t>(world.rank());
  begin_ = count * rank / ranks;
  end_ = count * (rank + 1) / ranks;
  const std::size_t longest = (count + ranks - 1) / ranks;
  passes_ = (longest + rows - 1) / rows;
}

const tessera::SampleBatch& HeldOutSlice::samples(std::size_t pass, std::size_t first) {
  const std::size_t begin = std::min(begin_ + pass * rows_, end_);
  chosen_.indices.resize(std::min(rows_, end_ - begin));
  std::iota(chosen_.indices.begin(), chosen_.indices.end(), first + begin);
  chosen_.weights.assign(chosen_.indices.size(), 1.0f);
  return chosen_;
}

}  // namespace examples
