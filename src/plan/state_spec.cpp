// Blocks of states, and the alignment that keeps them whole.
#include "tessera/plan/state_spec.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/plan/layout.hpp"

namespace tessera::plan {

std::vector<std::string> names_of(std::span<const StateSpec> states) {
  std::vector<std::string> names;
  for (const StateSpec& state : states) names.push_back(state.name);
  return names;
}

std::string describe(const StateSpec& state) {
  if (state.elementwise) {
    StateSpec of_all = state;
    of_all.elementwise = false;
    return describe(of_all) + " of tensors that are not seen whole";
  }
  if (state.block > 1)
    return fmt::format("{} ({}, one of {} elements)", state.name, to_string(state.type), state.block);
  return state.type == DType::fp32 ? state.name : fmt::format("{} ({})", state.name, to_string(state.type));
}

std::size_t alignment_for(std::span<const StateSpec> states) {
  std::size_t alignment = alignment_elements;
  for (const StateSpec& state : states) alignment = std::max(alignment, state.block);
  return alignment;
}

}  // namespace tessera::plan
