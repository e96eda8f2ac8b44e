// The part of verification that needs no order: buffers do not overlap, and every range is the layout's.
#pragma once

#include "plan/abstract_rank.hpp"

namespace tessera::plan {

void verify_layout(const Plan& plan, const Report& report);

}  // namespace tessera::plan
