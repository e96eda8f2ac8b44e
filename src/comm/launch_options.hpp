// The launch options: their limits, their defaults, and how they stand on a command line.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/run.hpp"

namespace tessera::comm {

// Throws UsageError naming the option, its value and its limits.
void validate(const LaunchOptions& options);

// The stated number, or cores / ranks of this process, at least 1.
int threads_per_rank(const LaunchOptions& options);

struct LaunchArguments {
  LaunchOptions options;
  std::vector<std::string> rest;  // what is not a launch option, in its order
};

// `--ranks 4` or `--ranks=4`. Throws UsageError for an option given twice, without a value, or with one that is no
// good.
LaunchArguments parse_launch_arguments(std::span<const std::string> arguments);

// Returns the text of --help: `about` the program, these options, and an example of calling it.
std::string help_page(std::string_view program, std::string_view about);

}  // namespace tessera::comm
