// What all models are put together with.
#include "models/model.hpp"

#include <utility>

namespace models {

namespace plan = tessera::plan;

ParameterCounts count_parameters(const std::vector<plan::UnitSpec>& units) {
  ParameterCounts counts;
  for (const plan::UnitSpec& unit : units) {
    for (const plan::ParameterSpec& parameter : unit.parameters) {
      (parameter.frozen ? counts.frozen : counts.trained) += tessera::element_count(parameter.shape);
    }
  }
  return counts;
}

void add_parameter(plan::UnitSpec& unit, const std::string& name, tessera::Shape shape) {
  unit.parameters.push_back({.name = unit.name + "." + name, .shape = std::move(shape)});
}

void recompute(plan::Program& program, std::size_t first, std::size_t end) {
  std::vector<plan::WindowUse> windows;
  for (const plan::WindowUse& use : program.micro_batch) {
    const bool is_chosen = use.kind == plan::WindowKind::backward && use.unit >= first && use.unit < end;
    if (is_chosen) windows.push_back({use.unit, plan::WindowKind::recompute});
    windows.push_back(use);
  }
  program.micro_batch = std::move(windows);
}

}  // namespace models
