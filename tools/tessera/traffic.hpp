// What a rank sends in one step, added up from the plan's own collectives.
#pragma once

#include <cstddef>
#include <vector>

#include "tessera/plan/plan.hpp"

namespace tools {

// The collectives of one kind in a step. A size is that of what is whole on every rank, or comes from there, in the
// type in which it travels; each rank sends and receives (ranks − 1) / ranks of it.
struct CollectiveSizes {
  tessera::plan::OperationKind kind;
  std::size_t count = 0;
  tessera::Bytes smallest = {};
  tessera::Bytes median = {};  // the lower of two
  tessera::Bytes largest = {};
  tessera::Bytes moved = {};  // per rank and step
};

struct Traffic {
  tessera::Bytes moved = {};  // per rank and step
  std::vector<CollectiveSizes> kinds = {};
};

// Empty for one rank.
Traffic traffic(const tessera::plan::Plan& plan);

}  // namespace tools
