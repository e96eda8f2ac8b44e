// Names of a GPT's units.
#include "models/gpt/shape.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

namespace models {

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

}  // namespace models
