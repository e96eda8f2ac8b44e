// Shares differ in size, so every rank sends as many bytes as the largest.
#include "shard/whole_parameter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "tessera/base/error.hpp"

namespace tessera {

namespace {

// At most one piece of a parameter stands in a shard.
std::optional<plan::ShardPiece> share_of(const plan::UnitLayout& layout, std::size_t rank, std::size_t parameter) {
  for (const plan::ShardPiece& piece : layout.pieces(rank)) {
    if (piece.parameter == parameter) return piece;
  }
  return std::nullopt;
}

}  // namespace

ParameterPlace parameter_place(const Unit& unit, const Parameter& parameter) {
  return {&parameter, unit.index(), unit.index_of(parameter)};
}

std::vector<float> whole_parameter(World& world, const plan::Plan& plan, const ParameterPlace& place,
                                   std::span<const ParameterPiece> pieces) {
  const plan::UnitLayout& layout = plan.layouts[place.unit];
  std::vector<std::optional<plan::ShardPiece>> shares;
  std::size_t largest = 0;
  for (std::size_t rank = 0; rank < layout.ranks(); ++rank) {
    shares.push_back(share_of(layout, rank, place.index));
    if (shares.back()) largest = std::max(largest, shares.back()->count);
  }
  const auto mine = std::find_if(pieces.begin(), pieces.end(),
                                 [&](const ParameterPiece& piece) { return piece.parameter == place.parameter; });
  if (mine == pieces.end() && shares[static_cast<std::size_t>(world.rank())]) {
    throw InternalError(fmt::format("this rank's share of {} is missing", place.parameter->name()));
  }
  std::vector<float> sent(largest, 0.0f);
  if (mine != pieces.end()) std::copy(mine->values.begin(), mine->values.end(), sent.begin());
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span<const float>(sent)), place.parameter->name());
  std::vector<float> result(place.parameter->elements());
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    if (!shares[rank]) continue;
    std::memcpy(result.data() + shares[rank]->parameter_offset, all.data() + rank * largest * sizeof(float),
                shares[rank]->count * sizeof(float));
  }
  return result;
}

}  // namespace tessera
