// All models are put together with this.
#include "models/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace models {

namespace plan = tessera::plan;
using tessera::plan::UnitSpec;

ParameterCounts count_parameters(const std::vector<plan::UnitSpec>& units) {
  ParameterCounts counts;
  for (const plan::UnitSpec& unit : units) {
    for (const plan::ParameterSpec& parameter : unit.parameters) {
      (parameter.frozen ? counts.frozen : counts.trained) +=
          tessera::element_count(plan::whole_shape(parameter.shape, parameter.slice));
    }
  }
  return counts;
}

void add_parameter(plan::UnitSpec& unit, const std::string& name, tessera::Shape shape) {
  unit.parameters.push_back({.name = unit.name + "." + name, .shape = std::move(shape)});
}

void recompute(plan::Program& program, std::size_t first, std::size_t end) {
  std::vector<bool> chosen(end);
  std::fill(chosen.begin() + static_cast<std::ptrdiff_t>(first), chosen.end(), true);
  program = plan::recomputing(program, chosen);
}

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

namespace {

UnitSpec layer(const LlamaShape& shape, std::size_t index) {
  UnitSpec unit{fmt::format("layers.{}", index), {}};
  add_parameter(unit, "attention_norm.weight", {shape.dim});
  add_parameter(unit, "attention.wq.weight", {shape.dim, shape.dim});
  add_parameter(unit, "attention.wk.weight", {shape.key_value_dim, shape.dim});
  add_parameter(unit, "attention.wv.weight", {shape.key_value_dim, shape.dim});
  add_parameter(unit, "attention.wo.weight", {shape.dim, shape.dim});
  add_parameter(unit, "ffn_norm.weight", {shape.dim});
  add_parameter(unit, "feed_forward.w1.weight", {shape.hidden, shape.dim});
  add_parameter(unit, "feed_forward.w3.weight", {shape.hidden, shape.dim});
  add_parameter(unit, "feed_forward.w2.weight", {shape.dim, shape.hidden});
  return unit;
}

}  // namespace

const LlamaShape* find_llama(std::string_view name) {
  const auto found = std::find_if(llamas.begin(), llamas.end(), [&](const auto& shape) { return shape.name == name; });
  return found == llamas.end() ? nullptr : &*found;
}

Model llama(const LlamaShape& shape, bool activation_checkpointing) {
  Model model;
  add_parameter(model.units.emplace_back(UnitSpec{"embedding", {}}), "weight", {shape.vocabulary, shape.dim});
  for (std::size_t index = 0; index < shape.layers; ++index) model.units.push_back(layer(shape, index));
  UnitSpec& head = model.units.emplace_back(UnitSpec{"head", {}});
  add_parameter(head, "norm.weight", {shape.dim});
  add_parameter(head, "output.weight", {shape.vocabulary, shape.dim});
  model.program = tessera::plan::Program::chain(model.units.size());
  if (activation_checkpointing) recompute(model.program, 1, 1 + shape.layers);
  return model;
}

}  // namespace models
