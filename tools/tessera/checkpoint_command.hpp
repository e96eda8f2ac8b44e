// The subcommands of `tessera checkpoint`, and what they print alike. Each takes what follows its name, prints text,
// JSON or its help page, and returns whether the answer is yes (run_checkpoint). Wherever one takes a checkpoint, a
// folder of checkpoints stands for its latest.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint_reader.hpp"

namespace tools {

bool run_checkpoint_list(std::vector<std::string> arguments);
bool run_checkpoint_show(std::vector<std::string> arguments);
bool run_checkpoint_verify(std::vector<std::string> arguments);
bool run_checkpoint_export(std::vector<std::string> arguments);
bool run_checkpoint_diff(std::vector<std::string> arguments);

tessera::Bytes total_bytes(const tessera::Manifest& manifest);
std::string name_of(const std::filesystem::path& folder);  // "step-00000100", also of "step-00000100/"
std::string printable(std::string_view name);              // of a file: without control characters and broken UTF-8

}  // namespace tools
