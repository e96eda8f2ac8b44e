// The command line of train_gpt.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/run_options.hpp"

namespace examples {

struct GptOptions {
  RunOptions run;

  std::size_t layers = 4;
  std::size_t dim = 128;  // a multiple of heads
  std::size_t heads = 4;
  std::size_t seq = 128;  // tokens of a sequence
  double dropout = 0.0;
  bool activation_checkpointing = false;
  std::vector<std::string> fp32_units;  // shell patterns over names of units

  std::string data = "shakespeare";       // that, or the path of a text or of a .bin file
  std::optional<std::size_t> vocabulary;  // as given
  std::size_t least_vocabulary = 1;       // a preset's

  std::optional<std::size_t> sample;  // bytes of generated text; default: a few for text, none for .bin files
  std::optional<std::string> prompt;  // default: a line break
  double temperature = 0.8;
};

// Nothing when only the help page was asked for. Throws OptionError.
std::optional<GptOptions> parse_options(int argc, char** argv);

}  // namespace examples
