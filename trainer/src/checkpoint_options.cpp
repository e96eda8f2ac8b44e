// The options are one group of the command line; what they ask for together is looked at once all are read.
#include "trainer/src/checkpoint_options.hpp"

#include <fmt/format.h>

#include "tessera/checkpoint/checkpoints.hpp"

namespace tessera::trainer {

void add_checkpoint_options(CommandLine& line, RunOptions& options) {
  CheckpointOptions& asked = options.checkpoints;
  line.group("Checkpoints");
  line.directory("--checkpoint-dir", asked.directory,
                 "Saves all that training needs to go on, in a directory step-N of this one, after the last step");
  line.whole("--save-every", asked.every, {1, longest_run}, "And after every so many steps");
  line.whole("--keep", asked.keep, {1, longest_run}, "Checkpoints that stay; older ones are removed [all]");
  line.flag("--save-async", asked.in_background,
            "Saves while training goes on, from a copy of each rank's shards that the table of bytes counts");
  line.flag("--resume", asked.resume, {{"skip-damaged", [&asked] { asked.skip_damaged = true; }}},
            "Goes on from the newest checkpoint, saved by any number of ranks and any strategy; without one, starts "
            "afresh. One that cannot be used is an error; with --resume=skip-damaged older ones are tried instead");
}

void check_checkpoint_options(const CommandLine& line, const RunOptions& options) {
  if (options.checkpoints.directory) {
    if (!options.simulated) return;
    throw OptionError("--checkpoint-dir and --simulate-world exclude each other: one rank has no whole checkpoint");
  }
  for (const char* name : {"--save-every", "--keep", "--save-async", "--resume"}) {
    if (line.given(name)) throw OptionError(fmt::format("{} needs --checkpoint-dir", name));
  }
}

void require_resumed_or_new(const CheckpointOptions& options) {
  if (!options.directory || options.resume) return;
  const auto found = tessera::list_checkpoints(*options.directory);
  if (found.empty()) return;
  throw OptionError(fmt::format(
      "--checkpoint-dir {} has checkpoints of a run already, the latest of step {}: add --resume to go on from it, or "
      "choose another directory",
      options.directory->string(), found.back().step));
}

}  // namespace tessera::trainer
