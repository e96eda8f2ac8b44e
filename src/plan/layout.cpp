// Offsets, padding and ownership inside a flat unit.
#include "tessera/plan/layout.hpp"

#include <algorithm>

#include "tessera/base/bytes.hpp"
#include "tessera/base/error.hpp"

namespace tessera::plan {

UnitLayout::UnitLayout(const UnitSpec& unit, std::size_t ranks) : ranks_(ranks) {
  if (ranks == 0) throw InternalError("a layout for no ranks");
  for (const ParameterSpec& parameter : unit.parameters) {
    offsets_.push_back(0);
    counts_.push_back(element_count(parameter.shape));
    parts_.push_back(parameter.frozen ? Part::frozen : Part::trained);
  }
  for (const Part part : all_parts) place(unit, part);
  for (const BufferSpec& buffer : unit.buffers) {
    buffer_offsets_.push_back(buffer_elements_);
    buffer_elements_ += round_up(element_count(buffer.shape), alignment_elements);
  }
}

void UnitLayout::place(const UnitSpec& unit, Part part) {
  std::size_t end = 0;
  for (std::size_t parameter = 0; parameter < unit.parameters.size(); ++parameter) {
    if (parts_[parameter] != part) continue;
    offsets_[parameter] = begin(part) + end;
    end += round_up(counts_[parameter], alignment_elements);
  }
  shard_elements_[static_cast<std::size_t>(part)] = round_up((end + ranks_ - 1) / ranks_, alignment_elements);
}

UnitLayout::Owned UnitLayout::owner(std::size_t parameter, std::size_t element) const {
  const Part part = parts_.at(parameter);
  const std::size_t place = offsets_[parameter] - begin(part) + element;
  const std::size_t rank = place / shard_elements(part);
  const std::size_t left_in_shard = shard_elements(part) * (rank + 1) - place;
  return {rank, std::min(left_in_shard, counts_[parameter] - element)};
}

std::vector<ShardPiece> UnitLayout::pieces(std::size_t rank) const {
  std::vector<ShardPiece> result;
  for (const Part part : all_parts) {
    const std::size_t begin = shard_begin(part, rank);
    const std::size_t end = begin + shard_elements(part);
    for (std::size_t parameter = 0; parameter < offsets_.size(); ++parameter) {
      if (parts_[parameter] != part) continue;
      const std::size_t first = std::max(begin, offsets_[parameter]);
      const std::size_t last = std::min(end, offsets_[parameter] + counts_[parameter]);
      if (first >= last) continue;
      result.push_back({parameter, first - offsets_[parameter], begin_in_shard(part) + first - begin, last - first});
    }
  }
  return result;
}

}  // namespace tessera::plan
