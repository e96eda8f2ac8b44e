// The entry to a job: starts the ranks and turns what they throw into one line and an exit code.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/world.hpp"

namespace tessera {

struct LaunchOptions {
  int ranks = 1;                              // threads of this process, 1 to 1024
  std::chrono::milliseconds timeout{60'000};  // the deadline of every wait for another rank
  std::optional<int> threads = std::nullopt;  // host threads per rank; default: cores / ranks, at least 1
};

// Starts `ranks` ranks, each with its World on a thread of its own (rank 0 on the calling thread), and waits for all.
// When any rank throws, all others are aborted, and the first cause is rethrown here: the exception itself, its text
// beginning with "rank R: " unless there is one rank. Blocks.
void launch(const LaunchOptions& options, const std::function<void(World&)>& body);

// For main(): as launch(), but an exception becomes "error: …" on stderr and exit code 1 (2 for bad options).
int run(const LaunchOptions& options, const std::function<void(World&)>& body);

// For main(), the short way: takes --ranks N, --timeout SECONDS and --threads N out of argv and hands the body what is
// left (without argv[0]). An unknown value there is one line on stderr and exit code 2.
using Arguments = std::span<const std::string>;
int run(int argc, char** argv, const std::function<void(World&, Arguments)>& body);
int run(int argc, char** argv, const std::function<void(World&)>& body);  // any argument that is left is an error

}  // namespace tessera
