// The request is what the command line asks for.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "memory_per_gpu/rows.hpp"

namespace bench {

struct Request {
  Comparison comparison;
  std::string activations;  // in words
  std::optional<std::filesystem::path> csv, json, plot;
};

// Nothing when only the help page was asked for. Throws examples::OptionError naming the option, or DataError for a
// model's file.
std::optional<Request> parse_request(int argc, char** argv);

}  // namespace bench
