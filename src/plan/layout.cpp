// Offsets, padding and ownership inside a flat unit.
#include "tessera/plan/layout.hpp"

#include <algorithm>

#include "tessera/base/bytes.hpp"

namespace tessera::plan {

std::string name_of_variant(const UnitSpec& unit, const std::string& tensor, std::size_t variant) {
  if (unit.apart.empty()) return tensor;
  return unit.prefix + std::to_string(variant) + "." + tensor.substr(unit.prefix.size());
}

std::string name_of_variant(const UnitSpec& unit, const ParameterSpec& parameter, std::size_t variant) {
  return parameter.slice ? parameter.name : name_of_variant(unit, parameter.name, variant);
}

UnitLayout::UnitLayout(const UnitSpec& unit, const MeshShape& mesh, std::size_t alignment)
    : mesh_(mesh), alignment_(alignment), common_(mesh.axes() - unit.apart), ranks_(mesh.size(common_)) {
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
  const auto place = [&](auto stands_here) {
    for (std::size_t parameter = 0; parameter < unit.parameters.size(); ++parameter) {
      if (parts_[parameter] != part || !stands_here(unit.parameters[parameter])) continue;
      offsets_[parameter] = begin(part) + end;
      end += round_up(counts_[parameter], alignment_);
      if (part == Part::trained) trained_.push_back(parameter);
    }
    return end;
  };
  if (part == Part::trained) {
    elementwise_begin_ = place([](const ParameterSpec& each) { return each.whole.has_value(); });
    alike_begin_ = place([](const ParameterSpec& each) { return !each.whole && !each.is_alike(); });
    elementwise_end_ = place([](const ParameterSpec& each) { return !each.whole && each.is_alike(); });
  } else {
    place([](const ParameterSpec&) { return true; });
  }
  shard_elements_[static_cast<std::size_t>(part)] = round_up((end + ranks_ - 1) / ranks_, alignment_);
}

UnitLayout::Owned UnitLayout::owner(std::size_t parameter, std::size_t element, AxisSet over,
                                    Coordinates others) const {
  const Part part = parts_.at(parameter);
  const std::size_t at = offsets_[parameter] - begin(part) + element;
  const std::size_t share = elements(over, part);
  const Coordinates place = mesh_.place_at(over & common_, at / share);
  for (std::size_t axis = 0; axis < axis_count; ++axis) others[axis] += place[axis];
  return {mesh_.rank_at(others), std::min(share - at % share, counts_[parameter] - element)};
}

std::vector<ShardPiece> UnitLayout::pieces(std::size_t rank, AxisSet over) const {
  std::vector<ShardPiece> result;
  const std::size_t first_shard = place(rank) / shards_in(over) * shards_in(over);
  for (const Part part : all_parts) {
    const std::size_t begin = UnitLayout::begin(part) + shard_elements(part) * first_shard;
    const std::size_t end = begin + elements(over, part);
    for (std::size_t parameter = 0; parameter < offsets_.size(); ++parameter) {
      if (parts_[parameter] != part) continue;
      const std::size_t first = std::max(begin, offsets_[parameter]);
      const std::size_t last = std::min(end, offsets_[parameter] + counts_[parameter]);
      if (first >= last) continue;
      result.push_back({parameter, first - offsets_[parameter], begin_in(over, part) + first - begin, last - first});
    }
  }
  return result;
}

}  // namespace tessera::plan
