// Offsets, padding and ownership inside a flat unit.
#include "tessera/plan/layout.hpp"

#include <algorithm>

#include "tessera/base/bytes.hpp"
#include "tessera/base/error.hpp"

namespace tessera::plan {

UnitLayout::UnitLayout(const UnitSpec& unit, std::size_t ranks) : ranks_(ranks) {
  if (ranks == 0) throw InternalError("a layout for no ranks");
  std::size_t end = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    const std::size_t count = element_count(parameter.shape);
    offsets_.push_back(end);
    counts_.push_back(count);
    end += round_up(count, alignment_elements);
  }
  shard_elements_ = round_up((end + ranks - 1) / ranks, alignment_elements);
}

std::vector<ShardPiece> UnitLayout::pieces(std::size_t rank) const {
  const std::size_t begin = shard_begin(rank);
  const std::size_t end = begin + shard_elements_;
  std::vector<ShardPiece> result;
  for (std::size_t parameter = 0; parameter < offsets_.size(); ++parameter) {
    const std::size_t first = std::max(begin, offsets_[parameter]);
    const std::size_t last = std::min(end, offsets_[parameter] + counts_[parameter]);
    if (first >= last) continue;
    result.push_back({parameter, first - offsets_[parameter], first - begin, last - first});
  }
  return result;
}

}  // namespace tessera::plan
