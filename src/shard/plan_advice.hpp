// A user is told this about a compiled plan: that it does not fit and what would, and the types that it resolved.
#pragma once

#include <string>

#include "tessera/plan/compile.hpp"
#include "tessera/plan/plan.hpp"

namespace tessera {

// Throws MemoryError when the arena of `plan`, made from `input`, is larger than `limit`; it names the term that is too
// large and a setting that would fit.
void require_fit(const plan::Plan& plan, const plan::CompileInput& input, Bytes limit);

// A line per unit: what windows show, what they take, what travels, how sums are formed, and how much is frozen.
std::string types_table(const plan::Plan& plan);

}  // namespace tessera
