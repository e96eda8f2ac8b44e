// Options, samples, and the job made of them. Limits on options keep every product here below 2^64.
#include "trainer/mlp/job.hpp"

#include <filesystem>
#include <utility>

#include "tessera/data/labelled_data.hpp"
#include "tessera/data/synthetic.hpp"
#include "tessera/nn/with_element.hpp"
#include "tessera/trainer/command_line.hpp"
#include "tessera/trainer/fit.hpp"
#include "tessera/trainer/labelled_batches.hpp"
#include "trainer/src/fingerprint.hpp"
#include "trainer/src/shipped_data.hpp"

namespace train_mlp {

using tessera::Bytes;

namespace {

constexpr const char* description =
    "Trains a multilayer perceptron, input -> hidden (GELU) -> ... -> classes, on labelled samples with sharded data "
    "parallelism. Every layer is a unit of its own.";

constexpr const char* footer =
    "Example: train_mlp --ranks 4 --strategy fsdp --epochs 20\n\n"
    "Linear scaling rule (Goyal et al. 2017): when the samples of a step, ranks x batch x accumulate, become k times "
    "as "
    "many, multiply --lr with k and warm up for some epochs. It was found for sgd; for adamw take the square root of "
    "k.\n\n"
    "All strategies give the same bits for the same ranks, micro-batches and --accumulate-mode; with --granules any "
    "number of ranks does.\n"
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
  options.run.undecayed = {"*bias"};
  CommandLine line(description, footer);
  add_model_options(line, options);
  add_run_options(line, options.run);
  if (!line.parse(argc, argv)) return std::nullopt;
  check_run_options(line, options.run);
  return options;
}

namespace {

constexpr std::size_t synthetic_samples = 65536;
constexpr std::size_t synthetic_held_out = 512;
constexpr std::size_t file_epochs = 30;
constexpr std::uint64_t split_seed = 0;
constexpr const char* digits_file = "digits.csv";

// A fifth is held out.
Dataset split_in_two(std::string name, const tessera::LabelledData& data) {
  tessera::Split parts = tessera::split(data, data.size() / 5, split_seed);
  Dataset result;
  result.name = std::move(name);
  result.training_samples = parts.training.size();
  result.training = std::make_shared<tessera::LabelledData>(std::move(parts.training));
  const std::size_t held_out = parts.held_out.size();
  result.held_out = {std::make_shared<tessera::LabelledData>(std::move(parts.held_out)), 0, held_out};
  result.default_epochs = file_epochs;
  return result;
}

// Pixels are 0 to 16.
Dataset digits() {
  return split_in_two("digits", tessera::read_labelled_csv(shipped_data(digits_file),
                                                           {.columns = 64, .classes = 10, .scale = 1.0f / 16}));
}

Dataset synthetic(std::uint64_t seed) {
  tessera::SyntheticOptions options;
  options.samples = synthetic_samples + synthetic_held_out;
  options.seed = seed;
  Dataset result;
  result.name = "synthetic";
  result.training = std::make_shared<tessera::SyntheticData>(options);
  result.training_samples = synthetic_samples;
  result.held_out = {result.training, synthetic_samples, synthetic_held_out};
  return result;
}

}  // namespace

Dataset load_dataset(const std::string& name, std::uint64_t seed) {
  if (name == "digits") return digits();
  if (name == "synthetic") return synthetic(seed);
  return split_in_two(std::filesystem::path(name).filename().string(), tessera::read_labelled_csv(name));
}

namespace {

Bytes activation_bytes(const Job& job) {
  return tessera::nn::with_element(job.options.run.precision, [&](auto element) {
    return Mlp<decltype(element)>::planned_activation_bytes(shape_of(job), job.options.run.batch,
                                                            device_kind(job.options.run));
  });
}

}  // namespace

MlpShape shape_of(const Job& job) {
  return {.in = job.data.columns(),
          .hidden = job.options.hidden,
          .depth = job.options.depth,
          .classes = job.data.classes(),
          .layers_save = job.options.run.offload.activations == tessera::MemorySpace::host};
}

Job make_job(const MlpOptions& options) {
  const RunOptions& run = options.run;
  Job job{.options = options, .data = {}};
  if (options.data != "synthetic") {
    const bool shipped = options.data == "digits";
    const std::filesystem::path path = shipped ? shipped_data(digits_file) : std::filesystem::path(options.data);
    require_data_is_no_output(run, path);
    if (needs_fingerprint(run)) job.options.run.data_fingerprint = fingerprint_of(path);
  }
  job.data = load_dataset(options.data, run.seed);
  require_enough_samples(run, job.data.name, job.data.training_samples);
  job.length = run_length(run, steps_per_epoch(run, job.data.training_samples), job.data.default_epochs);
  job.sharding = fitting_options(run, {.activations = activation_bytes(job),
                                       .batches = LabelledBatches::bytes(*job.data.training, run),
                                       .smaller = "--batch, --hidden or --depth"});
  return job;
}

}  // namespace train_mlp
