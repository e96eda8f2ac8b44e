// `tessera calibrate`: the file of the machine at hand, for `tessera plan --time --machine`.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

#include "commands.hpp"
#include "machine/calibrate.hpp"
#include "options.hpp"
#include "tessera/trainer/start.hpp"
#include "text.hpp"
#include "trace/trace_file.hpp"

namespace tools {

namespace calibrate_command {

constexpr const char* description =
    "Measures this machine's products, passes over memory, disk, and collectives of ranks that are threads, and writes "
    "them to a file that tessera plan --time --machine takes. Best while nothing else runs.";
constexpr const char* footer =
    "Examples:\n"
    "  tessera calibrate here.json --disk /scratch\n"
    "  tessera plan --mlp 64x256x10 --world 2 --batch 32 --time --machine here.json\n"
    "  tessera calibrate cluster.json --from-trace trace.json --base h100x8\n\n"
    "Exit code: 0; 1 when a file cannot be read or written; 2 for bad options.";

struct Request {
  std::filesystem::path file;
  std::size_t ranks = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 2, 8);
  std::size_t seconds = 100;
  std::optional<std::filesystem::path> disk;
  std::optional<std::string> trace;
  std::optional<std::string> base;
};

Machine measured(const Request& request) {
  const std::string name = request.file.stem().string();
  if (!request.trace) {
    return calibrate({.name = name,
                      .ranks = request.ranks,
                      .seconds = static_cast<double>(request.seconds),
                      .disk = request.disk.value_or(std::filesystem::absolute(request.file).parent_path())});
  }
  if (!request.base) throw OptionError("--from-trace needs --base, which says the rest: a name or a file");
  Machine machine = from_traces(find_machine(*request.base), {read_trace(*request.trace)});
  machine.name = name;
  machine.about += "; collectives and passes from a trace";
  return machine;
}

}  // namespace calibrate_command

bool run_calibrate(std::vector<std::string> arguments) {
  using namespace calibrate_command;
  Request request;
  CommandLine line(description, footer, "tessera calibrate");
  line.place("FILE.json", request.file, "Where the machine is written");
  line.whole("--ranks", request.ranks, {2, 64}, "Threads between which collectives are measured");
  line.whole("--seconds", request.seconds, {1, 3600}, "How long to measure, about");
  line.take({"--disk", "FOLDER",
             "Whose disk is measured, by updates of what stands there (--offload-to disk:FOLDER) [that of FILE.json]"},
            [&](const std::string& folder) { request.disk = folder; });
  line.text("--from-trace", request.trace, "TRACE.json",
            "Collectives and passes over memory as --trace of a trainer measured them");
  line.text("--base", request.base, "NAME|FILE", "With --from-trace: the machine that says everything else");
  if (!line.parse(std::move(arguments))) return true;
  if (request.base && !request.trace) throw OptionError("--base needs --from-trace");
  for (const char* name : {"--ranks", "--seconds", "--disk"}) {
    if (request.trace && line.given(name)) {
      throw OptionError(fmt::format("{} is without effect with --from-trace", name));
    }
  }
  std::error_code error;
  for (const auto& [name, input] : {std::pair("--from-trace", request.trace), std::pair("--base", request.base)}) {
    if (!input || !std::filesystem::equivalent(request.file, *input, error)) continue;
    throw OptionError(fmt::format("FILE.json and {} are the same file, {}", name, request.file.string()));
  }
  tessera::trainer::require_writable(request.file);
  const Machine machine = measured(request);
  write_file(request.file, object_text(json_of(machine)));
  fmt::print("{}: {}\n", request.file.string(), machine.about);
  return true;
}

}  // namespace tools
