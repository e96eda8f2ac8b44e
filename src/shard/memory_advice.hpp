// Refuses a plan that does not fit, with the term that is too large and a setting that would fit.
#pragma once

#include "tessera/plan/compile.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera {

// Throws MemoryError when the arena of `plan`, made from `input`, is larger than `limit`.
void require_fit(const plan::Plan& plan, const plan::CompileInput& input, Bytes limit);

}  // namespace tessera
