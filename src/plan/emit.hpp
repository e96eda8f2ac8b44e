// Writes down the operations of every segment, in the order of launch, with what they read and write. Waits come later
// (waits.hpp).
#pragma once

#include "tessera/plan/plan.hpp"

namespace tessera::plan {

// Fills segments of a plan whose buffers are made.
void emit_segments(Plan& plan);

}  // namespace tessera::plan
