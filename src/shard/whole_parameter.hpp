// Puts one parameter together from every rank's pieces.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tessera/comm/world.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/shard/pieces.hpp"
#include "tessera/shard/unit.hpp"

namespace tessera {

struct ParameterPlace {
  const Parameter* parameter;
  std::size_t unit;
  std::size_t index;  // in the unit
};
ParameterPlace parameter_place(const Unit& unit, const Parameter& parameter);

// `pieces`: this rank's of the unit, of which those of the parameter are taken. Collective; blocks.
std::vector<float> whole_parameter(World& world, const plan::Plan& plan, const ParameterPlace& place,
                                   std::span<const ParameterPiece> pieces);

}  // namespace tessera
