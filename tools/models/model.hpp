// A model as a plan sees it: its units, and the order of their windows. Shapes only, no bytes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/plan/layout.hpp"
#include "tessera/plan/program.hpp"

namespace models {

struct Model {
  std::vector<tessera::plan::UnitSpec> units;
  tessera::plan::Program program;
};

// Elements without padding, of what is trained and of what is frozen. Throws UsageError when a shape overflows.
struct ParameterCounts {
  std::size_t trained = 0;
  std::size_t frozen = 0;
  std::size_t all() const { return trained + frozen; }
};
ParameterCounts count_parameters(const std::vector<tessera::plan::UnitSpec>& units);

// Adds the parameter `unit.name`.
void add_parameter(tessera::plan::UnitSpec& unit, const std::string& name, tessera::Shape shape);

// A window of recomputation before the backward window of each unit from `first` to before `end`.
void recompute(tessera::plan::Program& program, std::size_t first, std::size_t end);

}  // namespace models
