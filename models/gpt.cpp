// Units and windows are those of train_gpt.
#include "models/gpt.hpp"

#include <algorithm>

#include "models/gpt/model.hpp"
#include "tessera/comm/simulate.hpp"
#include "tessera/nn/with_element.hpp"

namespace models {

Model gpt(const GptShape& shape, const tessera::Precision& precision, std::size_t batch) {
  return {
      tessera::nn::with_element(precision, [&](auto element) { return Gpt<decltype(element)>::units(shape, batch); }),
      Gpt<float>::program(shape)};
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

std::vector<tessera::plan::RankRole> gpt_stages(const GptShape& shape, const GptSchedule& schedule,
                                                const tessera::FullyShardOptions& sharding,
                                                const std::function<std::unique_ptr<tessera::Optimizer>()>& optimizer) {
  std::vector<tessera::plan::RankRole> result;
  tessera::simulate({.ranks = static_cast<int>(sharding.mesh->size())}, [&](tessera::World& world) {
    tessera::nn::with_element(sharding.precision, [&](auto element) {
      result = GptPipeline<decltype(element)>(world, sharding, shape, schedule).pipeline->plans(optimizer);
    });
  });
  return result;
}

}  // namespace models
