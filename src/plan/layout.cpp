// Offsets, padding and ownership inside a flat unit.
#include "tessera/plan/layout.hpp"

#include <algorithm>

#include "tessera/base/bytes.hpp"
#include "tessera/base/error.hpp"

namespace tessera::plan {

std::string name_in_replica(const UnitSpec& unit, const std::string& tensor, std::size_t replica) {
  if (!unit.in_replica) return tensor;
  return unit.prefix + std::to_string(replica) + "." + tensor.substr(unit.prefix.size());
}

UnitLayout::UnitLayout(const UnitSpec& unit, std::size_t ranks, std::size_t replicas)
    : ranks_(ranks), replicas_(replicas) {
  if (ranks == 0) throw InternalError("a layout for no ranks");
  if (replicas == 0 || ranks % replicas != 0) throw InternalError("a layout for ranks that make no mesh");
  for (const ParameterSpec& parameter : unit.parameters) {
    offsets_.push_back(0);
    counts_.push_back(element_count(parameter.shape));
    parts_.push_back(parameter.frozen ? Part::frozen : Part::trained);
  }
  for (const Part part : all_parts) lay_out(unit, part);
  for (const BufferSpec& buffer : unit.buffers) {
    buffer_offsets_.push_back(buffer_elements_);
    buffer_elements_ += round_up(element_count(buffer.shape), alignment_elements);
  }
}

void UnitLayout::lay_out(const UnitSpec& unit, Part part) {
  std::size_t end = 0;
  for (std::size_t parameter = 0; parameter < unit.parameters.size(); ++parameter) {
    if (parts_[parameter] != part) continue;
    offsets_[parameter] = begin(part) + end;
    end += round_up(counts_[parameter], alignment_elements);
  }
  shard_elements_[static_cast<std::size_t>(part)] = round_up((end + ranks_ - 1) / ranks_, alignment_elements);
}

std::size_t UnitLayout::place(std::size_t rank) const {
  const std::size_t ranks_of_replica = ranks_ / replicas_;
  return rank % ranks_of_replica * replicas_ + rank / ranks_of_replica % replicas_;
}

std::size_t UnitLayout::rank_at(std::size_t place) const {
  return place % replicas_ * (ranks_ / replicas_) + place / replicas_;
}

std::size_t UnitLayout::shards_in(Extent extent) const {
  switch (extent) {
    case Extent::whole: return ranks_;
    case Extent::group: return replicas_;
    case Extent::mine: return 1;
  }
  throw InternalError("an extent without shards");
}

UnitLayout::Owned UnitLayout::owner(std::size_t parameter, std::size_t element) const {
  const Part part = parts_.at(parameter);
  const std::size_t at = offsets_[parameter] - begin(part) + element;
  const std::size_t shard = at / shard_elements(part);
  const std::size_t left_in_shard = shard_elements(part) * (shard + 1) - at;
  return {rank_at(shard), std::min(left_in_shard, counts_[parameter] - element)};
}

UnitLayout::Owned UnitLayout::owner_in_replica(std::size_t replica, std::size_t parameter, std::size_t element) const {
  const Part part = parts_.at(parameter);
  const std::size_t at = offsets_[parameter] - begin(part) + element;
  const std::size_t share = elements(Extent::group, part);
  return {replica * (ranks_ / replicas_) + at / share, std::min(share - at % share, counts_[parameter] - element)};
}

std::vector<ShardPiece> UnitLayout::pieces(std::size_t rank, Extent extent) const {
  std::vector<ShardPiece> result;
  const std::size_t first_shard = place(rank) / shards_in(extent) * shards_in(extent);
  for (const Part part : all_parts) {
    const std::size_t begin = UnitLayout::begin(part) + shard_elements(part) * first_shard;
    const std::size_t end = begin + elements(extent, part);
    for (std::size_t parameter = 0; parameter < offsets_.size(); ++parameter) {
      if (parts_[parameter] != part) continue;
      const std::size_t first = std::max(begin, offsets_[parameter]);
      const std::size_t last = std::min(end, offsets_[parameter] + counts_[parameter]);
      if (first >= last) continue;
      result.push_back({parameter, first - offsets_[parameter], begin_in(extent, part) + first - begin, last - first});
    }
  }
  return result;
}

}  // namespace tessera::plan
