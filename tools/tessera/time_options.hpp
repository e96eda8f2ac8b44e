// `tessera plan --time` has these options beside the plan's: on which machine, with what in its way, and where to draw
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "tessera/plan/simulate.hpp"

namespace tools {

struct TimeRequest {
  bool asked = false;
  bool fastest = false;                // of what --fit finds
  std::optional<std::string> machine;  // a name or a file
  std::optional<std::string> profile;
  std::optional<std::string> what_if;
  std::optional<std::string> trace;
  std::optional<std::string> figure;
  std::vector<tessera::plan::SlowRank> slow;
  double jitter = 0;
  std::size_t seed = 0;
};

void add_time_options(CommandLine& line, TimeRequest& request);
// Throws OptionError for options that do not go together, and for an output that would replace a file that is read.
// units: that of --units.
void check_time_options(const CommandLine& line, const TimeRequest& request, const std::optional<std::string>& units);

}  // namespace tools
