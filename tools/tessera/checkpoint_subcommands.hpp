// The subcommands of `tessera checkpoint`. Each takes what follows its name, prints text, JSON or its help page, and
// returns whether the answer is yes (checkpoint_command.hpp). Wherever one takes a checkpoint, a folder of checkpoints
// stands for its latest.
#pragma once

#include <string>
#include <vector>

namespace tools {

bool run_checkpoint_list(std::vector<std::string> arguments);
bool run_checkpoint_show(std::vector<std::string> arguments);
bool run_checkpoint_verify(std::vector<std::string> arguments);
bool run_checkpoint_export(std::vector<std::string> arguments);
bool run_checkpoint_diff(std::vector<std::string> arguments);

}  // namespace tools
