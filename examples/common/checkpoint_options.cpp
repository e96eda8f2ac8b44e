// The options of saving and resuming.
#include "common/checkpoint_options.hpp"

#include <fmt/format.h>

#include "tessera/checkpoint/checkpoints.hpp"

namespace examples {

namespace {

constexpr std::size_t most_steps = 1'000'000'000;

}  // namespace

void add_checkpoint_options(CommandLine& line, RunOptions& options) {
  CheckpointOptions& asked = options.checkpoints;
  line.group("Checkpoints");
  line.directory("--checkpoint-dir", asked.directory,
                 "Saves all that training needs to go on, in a directory step-N of this one, after the last step");
  line.whole("--save-every", asked.every, {1, most_steps}, "And after every so many steps");
  line.whole("--keep", asked.keep, {1, most_steps}, "Checkpoints that stay; older ones are removed [all]");
  line.flag("--save-async", asked.in_background,
            "Saves while training goes on, from a copy of each rank's shards that the table of bytes counts");
  line.flag("--resume", asked.resume,
            "Goes on from the latest checkpoint, saved by any number of ranks and any strategy; without one, starts "
            "afresh");
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
  const auto latest = tessera::latest_checkpoint(*options.directory);
  if (!latest) return;
  throw OptionError(fmt::format(
      "--checkpoint-dir {} has checkpoints of a run already, the latest of step {}: add --resume to go on from it, or "
      "choose another directory",
      options.directory->string(), latest->step));
}

}  // namespace examples
