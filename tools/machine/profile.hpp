// A profile: how long one rank's own work took by a trace, from which the durations of other jobs follow.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <tuple>

#include "trace/trace_file.hpp"

namespace tools {

// A Profile is what a trace says of one rank's own work: medians over steps and ranks.
struct Profile {
  // The key is the unit, the pass, and the place among the micro-batch's windows of that kind.
  std::map<std::tuple<std::string, std::string, std::size_t>, double> windows;
  std::map<std::string, double>
      seconds_per_byte;  // by kind of operation: "optimize"; of collectives where one rank ran
  // This is the part of a step outside of windows and of calls into the runtime: loading, logging. The host spends it
  // before it launches a micro-batch's first operation, an equal part in each.
  double outside = 0;
  std::size_t ranks = 1;  // of the job that was traced
};
Profile profile_of(const TraceFile& trace);

}  // namespace tools
