// Parameters in the order of their use.
#include "models/llama.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace models {

using tessera::plan::UnitSpec;

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
