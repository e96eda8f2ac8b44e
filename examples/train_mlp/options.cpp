// The model's and the data's options, beside those that all trainers share.
#include "train_mlp/options.hpp"

#include "common/command_line.hpp"

namespace examples {

namespace {

constexpr const char* description =
    "Trains a multilayer perceptron, input -> hidden (GELU) -> ... -> classes, on labelled samples with sharded data "
    "parallelism. Every layer is a unit of its own.";

constexpr const char* footer =
    "Linear scaling rule (Goyal et al. 2017): when the samples of a step, ranks x batch x accumulate, become k times "
    "as "
    "many, multiply --lr with k and warm up for some epochs. It was found for sgd; for adamw take the square root of "
    "k.\n\n"
    "All strategies give the same bits for the same ranks, micro-batches and --accumulate-mode.\n"
    "Exit code: 0, 1 when the run failed, 2 for bad options.";

void add_model_options(CommandLine& line, MlpOptions& options) {
  line.group("Model and data");
  line.whole("--hidden", options.hidden, {1, std::size_t{1} << 20}, "Width of the hidden layers");
  line.whole("--depth", options.depth, {0, 4096}, "hidden x hidden layers between the first and the last layer");
  line.text(
      "--data", options.data,
      "digits (8 x 8 handwritten digits, shipped), synthetic (64 features, 10 classes, drawn by --seed), or a CSV "
      "file: features and a label per line, no header");
}

}  // namespace

std::optional<MlpOptions> parse_options(int argc, char** argv) {
  MlpOptions options;
  CommandLine line(description, footer);
  add_model_options(line, options);
  add_run_options(line, options.run);
  if (!line.parse(argc, argv)) return std::nullopt;
  check_run_options(line, options.run);
  require_data_is_no_output(options.run, options.data);
  return options;
}

}  // namespace examples
