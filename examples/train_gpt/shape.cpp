// Names and windows of a GPT's units.
#include "train_gpt/shape.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

namespace examples {

std::string block_name(std::size_t index) { return fmt::format("blocks.{}", index); }

std::vector<std::string> unit_names(const GptShape& shape) {
  std::vector<std::string> names = {embedding_name};
  for (std::size_t i = 0; i < shape.layers; ++i) names.push_back(block_name(i));
  names.emplace_back(final_name);
  return names;
}

bool stays_in_fp32(const GptShape& shape, std::string_view unit) {
  const std::string name(unit);
  return std::any_of(shape.fp32_units.begin(), shape.fp32_units.end(),
                     [&](const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

tessera::plan::Program program(const GptShape& shape) {
  using tessera::plan::WindowKind;
  constexpr std::size_t embedding = 0;
  const std::size_t final_norm = shape.layers + 1;
  tessera::plan::Program result;
  const auto pass = [&](std::vector<tessera::plan::WindowUse>& windows, WindowKind kind) {
    for (std::size_t unit = embedding; unit <= final_norm; ++unit) windows.push_back({unit, kind});
    windows.push_back({embedding, kind});
  };
  pass(result.micro_batch, WindowKind::forward);
  result.micro_batch.push_back({embedding, WindowKind::backward});
  result.micro_batch.push_back({final_norm, WindowKind::backward});
  for (std::size_t block = shape.layers; block > 0; --block) {
    if (shape.activation_checkpointing) result.micro_batch.push_back({block, WindowKind::recompute});
    result.micro_batch.push_back({block, WindowKind::backward});
  }
  result.micro_batch.push_back({embedding, WindowKind::backward});
  pass(result.evaluation, WindowKind::evaluate);
  return result;
}

}  // namespace examples
