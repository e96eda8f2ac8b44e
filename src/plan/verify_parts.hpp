// Parts of verification that need no order.
#pragma once

#include "plan/abstract_rank.hpp"

namespace tessera::plan {

// Buffers do not overlap, and every range is the layout's.
void verify_layout(const Plan& plan, const Report& report);
// Sums over micro-batches each begin with the first, leave none out, and are divided once, by as many gradients as they
// are of.
void verify_sums(const Plan& plan, const Report& report);

}  // namespace tessera::plan
