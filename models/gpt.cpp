// Names, shapes and order of the parameters; windows are those of train_gpt.
#include "models/gpt.hpp"

#include <algorithm>

#include "models/gpt/model.hpp"
#include "tessera/nn/with_element.hpp"

namespace models {

using tessera::plan::UnitSpec;

namespace {

void add_norm(UnitSpec& unit, const std::string& prefix, std::size_t dim) {
  add_parameter(unit, prefix + "weight", {dim});
  add_parameter(unit, prefix + "bias", {dim});
}

void add_linear(UnitSpec& unit, const std::string& name, std::size_t out, std::size_t in) {
  add_parameter(unit, name + ".weight", {out, in});
  add_parameter(unit, name + ".bias", {out});
}

UnitSpec embedding(const GptShape& shape) {
  UnitSpec unit{embedding_name, {}};
  add_parameter(unit, "wte.weight", {shape.vocabulary, shape.dim});
  add_parameter(unit, "wpe.weight", {shape.seq, shape.dim});
  return unit;
}

UnitSpec block(std::size_t index, std::size_t dim) {
  UnitSpec unit{block_name(index), {}};
  add_norm(unit, "ln_1.", dim);
  add_linear(unit, "attn.c_attn", 3 * dim, dim);
  add_linear(unit, "attn.c_proj", dim, dim);
  add_norm(unit, "ln_2.", dim);
  add_linear(unit, "mlp.c_fc", 4 * dim, dim);
  add_linear(unit, "mlp.c_proj", dim, 4 * dim);
  return unit;
}

}  // namespace

Model gpt(const GptShape& shape, const tessera::Precision& precision, std::size_t batch) {
  Model model;
  model.units.push_back(embedding(shape));
  for (std::size_t index = 0; index < shape.layers; ++index) model.units.push_back(block(index, shape.dim));
  UnitSpec& last = model.units.emplace_back(UnitSpec{final_name, {}});
  add_norm(last, "", shape.dim);
  for (UnitSpec& unit : model.units) {
    if (stays_in_fp32(shape, unit.name)) unit.precision = tessera::fp32_precision;
    unit.saved = tessera::nn::with_element(
        precision, [&](auto element) { return Gpt<decltype(element)>::saved_bytes(shape, unit.name, batch); });
  }
  model.program = Gpt<float>::program(shape);
  return model;
}

const Preset* find_gpt(std::string_view name) {
  const auto& all = presets;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& preset) { return preset.name == name; });
  return found == all.end() ? nullptr : &*found;
}

GptShape shape_of(const Preset& preset) {
  return {.layers = preset.layers,
          .dim = preset.dim,
          .heads = preset.heads,
          .seq = preset_seq,
          .vocabulary = preset_vocabulary};
}

tessera::Bytes gpt_activations(const GptShape& shape, const tessera::Precision& precision, std::size_t batch) {
  return tessera::nn::with_element(
      precision, [&](auto element) { return Gpt<decltype(element)>::planned_activation_bytes(shape, batch); });
}

}  // namespace models
