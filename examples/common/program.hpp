// The main() of every trainer is here: options, files, ranks. Whatever goes wrong is one line and an exit code.
#pragma once

#include <filesystem>
#include <functional>

#include "common/run_metrics.hpp"
#include "common/run_options.hpp"
#include "tessera/comm/world.hpp"

namespace examples {

// Calls the body; 0, exit_bad_options for an OptionError, 1 for any other error, printed in one line.
int run_program(const std::function<int()>& body);

// Looks at the run's files before the ranks start, then calls `train` once per rank. Returns the exit code.
int run_ranks(const RunOptions& options, const std::function<void(tessera::World&, RunMetrics*)>& train);

// Finds out before hours of training whether their result can be written.

// Throws DataError when no file can appear under this path. Leaves nothing behind, and what stands there untouched.
void require_writable(const std::filesystem::path& path);

}  // namespace examples
