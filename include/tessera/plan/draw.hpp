// A plan as text: one table per segment for people, and a canonical form that is complete, for hashing and for diffs.
#pragma once

#include <string>

#include "tessera/plan/plan.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

// Rows "#, stream, operation, reads → writes, waits", segment by segment, in the order of launch.
std::string draw(const Plan& plan);
std::string draw(const Plan& plan, std::size_t segment);

// Everything that execution depends on, one fact a line. Equal plans give equal text.
std::string canonical_text(const Plan& plan);

}  // namespace tessera::plan

#pragma GCC visibility pop
