// --checkpoint-dir and what goes with it: the options of saving and resuming.
#pragma once

#include "common/run_options.hpp"

namespace examples {

// `options` must stay.
void add_checkpoint_options(CommandLine& line, RunOptions& options);

// After parse(). Throws OptionError for options that have nothing to act on.
void check_checkpoint_options(const CommandLine& line, const RunOptions& options);

// Before the ranks start: throws OptionError where a run that does not resume would write among another's checkpoints.
void require_resumed_or_new(const CheckpointOptions& options);

}  // namespace examples
