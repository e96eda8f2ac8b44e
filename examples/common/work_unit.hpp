// What the speed of a run is counted in.
#pragma once

#include <cstddef>
#include <string_view>

namespace examples {

struct WorkUnit {
  std::string_view name = "samples";  // a literal
  std::size_t per_sample = 1;
};

}  // namespace examples
