// --gather and --wire: in which types parameters and gradients travel, where these are others than they are computed
// with. The trainers and `tessera plan` share them.
#pragma once

#include <optional>
#include <string>

#include "tessera/plan/strategy.hpp"
#include "tessera/trainer/command_line.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

struct TravelOptions {
  std::optional<tessera::DType> gather;
  std::optional<tessera::DType> wire;
};

// `options` must stay.
void add_travel_options(CommandLine& line, TravelOptions& options);

// The types with these in place of their own. Throws OptionError where parameters would become larger on their way.
tessera::Precision with_travel(const tessera::Precision& types, const TravelOptions& options);

// ", parameters travel in int8 and gradients in int8"; empty where all travel as they are.
std::string travel_text(const tessera::Precision& types);

}  // namespace tessera::trainer

#pragma GCC visibility pop
