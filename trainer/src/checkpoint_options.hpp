// The options of a run's checkpoints: --checkpoint-dir, --save-every, --keep, --save-async and --resume.
#pragma once

#include <cstddef>

#include "tessera/trainer/command_line.hpp"
#include "tessera/trainer/run_options.hpp"

namespace tessera::trainer {

inline constexpr std::size_t longest_run = 1'000'000'000;  // steps

// `options` must stay.
void add_checkpoint_options(CommandLine& line, RunOptions& options);

// After parse(). Throws OptionError for options that have nothing to act on.
void check_checkpoint_options(const CommandLine& line, const RunOptions& options);

// Before the ranks start: throws OptionError where a run that does not resume would write among another's checkpoints.
void require_resumed_or_new(const CheckpointOptions& options);

}  // namespace tessera::trainer
