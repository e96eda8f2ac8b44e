// The main() of a trainer: its files are looked at before its ranks start.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "tessera/comm/world.hpp"
#include "tessera/trainer/command_line.hpp"
#include "tessera/trainer/run_options.hpp"
#include "tessera/trainer/start.hpp"
#include "tessera/trainer/training.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

// Looks at the run's files before the ranks start, then calls `train` once per rank. Returns the exit code.
int run_ranks(const RunOptions& options, const std::function<void(tessera::World&, RunMetrics*)>& train);

// A trainer with the shared options and those of its own.
struct Program {
  std::string description;                                          // of --help
  std::string data;                                                 // its name
  std::size_t samples = 0;                                          // to train on
  std::size_t epochs = 1;                                           // where neither --steps nor --epochs is given
  std::function<void(CommandLine&, RunOptions&)> add_options = {};  // its own, and other defaults of the shared ones
  // One rank's training. `options` stay.
  std::function<std::unique_ptr<Training>(tessera::World&, const RunOptions&)> training;
};

// The whole of main(): parses, starts the ranks, trains, and returns the exit code.
int run(int argc, char** argv, const Program& program);

}  // namespace tessera::trainer

#pragma GCC visibility pop
