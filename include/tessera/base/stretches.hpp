// Stretches of time, each from its beginning to its end, and how long they are together.
#pragma once

#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace tessera {

using Stretches = std::vector<std::pair<double, double>>;

// Returns the stretches in the order of time; those that overlap or touch become one. The other two functions take
// these.
Stretches merged(Stretches stretches);

double length(const Stretches& merged);
double common_length(const Stretches& merged_a, const Stretches& merged_b);

}  // namespace tessera

#pragma GCC visibility pop
