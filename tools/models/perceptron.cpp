// A chain of layers.
#include "models/perceptron.hpp"

#include <fmt/format.h>

namespace models {

Model perceptron(const std::vector<std::size_t>& widths) {
  Model model;
  for (std::size_t layer = 0; layer + 1 < widths.size(); ++layer) {
    auto& unit = model.units.emplace_back(tessera::plan::UnitSpec{fmt::format("layers.{}", layer), {}});
    add_parameter(unit, "weight", {widths[layer + 1], widths[layer]});
    add_parameter(unit, "bias", {widths[layer + 1]});
  }
  model.program = tessera::plan::Program::chain(model.units.size());
  return model;
}

}  // namespace models
