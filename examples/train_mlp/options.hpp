// The command line of train_mlp.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "common/run_options.hpp"

namespace examples {

struct MlpOptions {
  RunOptions run;
  std::size_t hidden = 256;
  std::size_t depth = 6;        // hidden × hidden layers between input and output
  std::string data = "digits";  // "digits", "synthetic", or the path of a CSV file
};

// Nothing when only the help page was asked for. Throws OptionError.
std::optional<MlpOptions> parse_options(int argc, char** argv);

}  // namespace examples
