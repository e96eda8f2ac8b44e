// Everything that can be found wrong before the ranks start is found here.
#include "common/program.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <optional>

#include "common/checkpoint_options.hpp"
#include "common/output_file.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/checkpoint/weights.hpp"
#include "tessera/comm/start.hpp"

namespace examples {

namespace {

// Of several processes with the same options, one speaks and writes.
bool is_first_process() { return tessera::how_started().rank == 0; }

void print(const std::exception& error) {
  if (is_first_process()) fmt::print(stderr, "error: {}\n", error.what());
}

}  // namespace

int run_program(const std::function<int()>& body) {
  try {
    return body();
  } catch (const OptionError& error) {
    print(error);
    return exit_bad_options;
  } catch (const std::exception& error) {
    print(error);
    return 1;
  }
}

int run_ranks(const RunOptions& options, const std::function<void(tessera::World&, MetricsFile*)>& train) {
  if (options.init) tessera::SafetensorsReader header_is_sound(*options.init);
  if (options.init_map) tessera::read_name_map(*options.init_map);
  if (options.dump_weights && is_first_process()) require_writable(*options.dump_weights);
  if (options.trace && is_first_process()) require_writable(*options.trace);
  if (is_first_process()) require_resumed_or_new(options.checkpoints);
  std::optional<MetricsFile> metrics;
  if (options.metrics && is_first_process()) metrics.emplace(*options.metrics, options.checkpoints.resume);
  const auto body = [&](tessera::World& world) { train(world, metrics ? &*metrics : nullptr); };
  if (!options.simulated) return tessera::run(launch_options(options), body);
  tessera::simulate(simulate_options(options), body);
  return 0;
}

}  // namespace examples
