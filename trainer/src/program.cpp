// Everything that can be found wrong before the ranks start is found here.
#include "tessera/trainer/program.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/checkpoint/weights.hpp"
#include "tessera/comm/start.hpp"
#include "tessera/trainer/fit.hpp"
#include "trainer/src/checkpoint_options.hpp"
#include "trainer/src/run_metrics.hpp"
#include "trainer/src/stop.hpp"

namespace tessera::trainer {

int run_ranks(const RunOptions& options, const std::function<void(tessera::World&, RunMetrics*)>& train) {
  if (options.init) tessera::SafetensorsReader header_is_sound(*options.init);
  if (options.init_map) tessera::read_name_map(*options.init_map);
  if (options.dump_weights && is_first_process()) require_writable(*options.dump_weights);
  if (options.trace && is_first_process()) require_writable(*options.trace);
  if (options.plot && is_first_process()) require_writable(*options.plot);
  if (is_first_process()) require_resumed_or_new(options.checkpoints);
  std::optional<RunMetrics> metrics;
  if ((options.metrics || options.tensorboard) && is_first_process()) metrics.emplace(options);
  const auto body = [&](tessera::World& world) { train(world, metrics ? &*metrics : nullptr); };
  if (options.checkpoints.directory) note_stop_signals();
  if (!options.simulated) {
    const int code = tessera::run(launch_options(options), body);
    return code == 0 && stopped_by() != 0 ? 128 + stopped_by() : code;
  }
  tessera::simulate(simulate_options(options), body);
  return 0;
}

int run(int argc, char** argv, const Program& program) {
  require_fast_blas(argv);
  return run_program([&] {
    RunOptions options;
    const std::string name = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "program";
    CommandLine line(program.description, fmt::format("Example: {} --ranks 4 --metrics run.jsonl\n\n"
                                                      "Exit code: 0, 1 when the run failed, 2 for bad options.",
                                                      name));
    if (program.add_options) program.add_options(line, options);
    add_run_options(line, options);
    if (!line.parse(argc, argv)) return 0;
    check_run_options(line, options);
    require_enough_samples(options, program.data, program.samples);
    const RunLength length = run_length(options, steps_per_epoch(options, program.samples), program.epochs);
    return run_ranks(options, [&](tessera::World& world, RunMetrics* metrics) {
      train(world, {.options = options, .length = length, .metrics = metrics},
            [&] { return program.training(world, options); });
    });
  });
}

}  // namespace tessera::trainer
