// `tessera plan --params N`: a number of parameters alone, in the ZeRO paper's accounting and in ours.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tessera/plan/strategy.hpp"

namespace tools {

struct ParametersQuestion {
  double parameters;
  std::size_t ranks;
  std::size_t optimizer_states;
};

std::string text_of(const ParametersQuestion& question);
nlohmann::ordered_json json_of(const ParametersQuestion& question);

}  // namespace tools
