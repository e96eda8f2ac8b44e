// `tessera cost`: the arithmetic that data-parallel jobs start with, from a few numbers with units.
#pragma once

#include <string>
#include <vector>

namespace tools {

// `arguments`: what follows `tessera cost`. Prints what was asked for and returns the exit code: 0, or 2 for bad
// options, which one line on standard error names. Throws tessera::Error where a figure cannot be drawn.
int run_cost(const std::vector<std::string>& arguments);

}  // namespace tools
