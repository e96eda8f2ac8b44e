// --offload, --offload-to and --offload-units: what of a model stands in the host's memory or on disk. The trainers and
// `tessera plan` share them.
#pragma once

#include <filesystem>
#include <string>

#include "tessera/plan/strategy.hpp"
#include "tessera/trainer/command_line.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

// Both must stay. `disk`: the folder of --offload-to (FullyShardOptions::disk).
void add_offload_options(CommandLine& line, tessera::Offload& offload, std::filesystem::path& disk);

// Refuses what these cannot mean, with parameters of this precision; is_searched: what moves is not said, but found, so
// that --offload-to may stand alone. Throws OptionError.
void check_offload_options(const CommandLine& line, const tessera::Offload& offload, const std::filesystem::path& disk,
                           const tessera::Precision& precision, bool is_searched = false);

// Activations go where units say how much their forward windows leave (UnitOptions::saved): throws OptionError where
// that is asked of a model that does not.
void check_offloaded_activations(const tessera::Offload& offload, bool saves);

// ", states of the optimizer and masters of the first 3 units in the host's memory"; empty where nothing moves.
std::string offload_text(const tessera::Offload& offload);

}  // namespace tessera::trainer

#pragma GCC visibility pop
