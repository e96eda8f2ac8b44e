// Derives every wait of a plan from what its operations read and write.
#pragma once

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// Fills Operation::waits and Plan::events of a plan whose segments are emitted. Adds only what no other path of streams
// and waits implies, over every sequence of segments that the plan allows.
void derive_waits(Plan& plan);

}  // namespace tessera::plan
