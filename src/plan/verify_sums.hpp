// The verifier checks of sums over micro-batches that each begins with the first, leaves none out, and is divided once,
// by as many gradients as it is of.
#pragma once

#include "plan/abstract_rank.hpp"

namespace tessera::plan {

void verify_sums(const Plan& plan, const Report& report);

}  // namespace tessera::plan
