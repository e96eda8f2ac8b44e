// The resolved types of a plan as text.
#pragma once

#include <string>

#include "tessera/plan/plan.hpp"

namespace tessera {

// A line per unit: what windows show, what they take, what travels, how sums are formed, and how much is frozen.
std::string types_table(const plan::Plan& plan);

}  // namespace tessera
