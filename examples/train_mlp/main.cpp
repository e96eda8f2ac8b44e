// train_mlp: trains a multilayer perceptron with sharded data parallelism. Try: ./train_mlp --ranks 4 --strategy fsdp
// Everything that can be found wrong before the ranks start is found here.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <optional>

#include "common/output_file.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "train_mlp/fit.hpp"
#include "train_mlp/trainer.hpp"

namespace examples {

namespace {

Job make_job(const MlpOptions& options) {
  Job job{.options = options, .data = load_dataset(options.data, options.run.seed), .length = {}, .sharding = {}};
  require_enough_samples(options.run, job.data);
  job.length =
      run_length(options.run, job.data.training_samples / options.run.samples_per_step(), job.data.default_epochs);
  job.sharding = fitting_options(job);
  return job;
}

int train_with(const MlpOptions& options) {
  const Job job = make_job(options);
  const RunOptions& run = job.options.run;
  if (run.init) tessera::SafetensorsReader header_is_sound(*run.init);
  if (run.dump_weights) require_writable(*run.dump_weights);
  std::optional<MetricsFile> metrics;
  if (run.metrics) metrics.emplace(*run.metrics);
  return tessera::run(launch_options(run),
                      [&](tessera::World& world) { train(world, job, metrics ? &*metrics : nullptr); });
}

int run_program(int argc, char** argv) {
  try {
    const std::optional<MlpOptions> options = parse_options(argc, argv);
    return options ? train_with(*options) : 0;
  } catch (const OptionError& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return exit_bad_options;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}

}  // namespace

}  // namespace examples

int main(int argc, char** argv) { return examples::run_program(argc, argv); }
