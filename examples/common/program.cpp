// Everything that can be found wrong before the ranks start is found here.
#include "common/program.hpp"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <system_error>

#include "command_line/streams.hpp"
#include "common/run_checkpoints.hpp"
#include "common/stop.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/file_size_limit.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/checkpoint/weights.hpp"
#include "tessera/comm/start.hpp"

namespace examples {

namespace {

// One of several processes with the same options speaks and writes.
using tessera::is_first_process;

void print(const std::exception& error) {
  if (is_first_process()) tools::tell(std::string("error: ") + error.what());
}

}  // namespace

int run_program(const std::function<int()>& body) {
  tools::open_closed_streams();
  tessera::make_file_size_limit_an_error();
  try {
    return tools::exit_code(body());
  } catch (const OptionError& error) {
    print(error);
    return exit_bad_options;
  } catch (const std::exception& error) {
    print(error);
    return 1;
  }
}

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

void require_writable(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) {
    throw tessera::DataError(fmt::format("{}: is a directory, so no file can be written there", path.string()));
  }
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw tessera::DataError(fmt::format("{}: is not a regular file, and will not be replaced", path.string()));
  }
  std::string probe = path.string() + ".XXXXXX";
  const int file = mkstemp(probe.data());
  if (file < 0) {
    throw tessera::DataError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
  }
  close(file);
  unlink(probe.c_str());
}

}  // namespace examples
