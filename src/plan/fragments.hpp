// The runs of units that take turns in outer steps.
#pragma once

#include <cstddef>
#include <vector>

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// Units with something to train, in their order: options.outer_fragments runs of about as many elements each, none
// without a unit.
// Empty when there are no outer steps.
std::vector<std::vector<std::size_t>> outer_fragments(const Plan& plan);

}  // namespace tessera::plan
