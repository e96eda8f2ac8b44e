// The extents of a tensor, outermost first. An empty shape is a scalar: one element.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tessera {

using Shape = std::vector<std::size_t>;

std::size_t element_count(const Shape& shape);  // throws UsageError when the product overflows
std::string to_string(const Shape& shape);      // "[64, 10]"

}  // namespace tessera

#pragma GCC visibility pop
