// --simulate-world: a trainer as one real rank of an imagined job.
#pragma once

#include "tessera/trainer/run_options.hpp"

namespace tessera::trainer {

// --simulate-world, --rank and --simulate-backend. `options` must stay.
void add_simulation_options(CommandLine& line, RunOptions& options);

// After parse(). Sets options.simulated, and notes what a simulation is and which options it does not read. Throws
// OptionError for contradictions, and for a backend whose memory cannot be known.
void check_simulation_options(const CommandLine& line, RunOptions& options);

}  // namespace tessera::trainer
