// run(), the whole of a main function: every failure is one line on stderr and an exit code.
#include "tessera/comm/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "comm/launch.hpp"
#include "comm/launch_options.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/file_size_limit.hpp"
#include "tessera/comm/start.hpp"

namespace tessera {
namespace {

constexpr int exit_success = 0;
constexpr int exit_failure = 1;
constexpr int exit_bad_options = 2;

void print(const std::exception_ptr& failure) { comm::say(fmt::format("error: {}\n", comm::text_of(failure))); }

// Whether `function` returned; what it throws becomes a line.
template <typename Function>
bool succeeds(Function&& function) {
  try {
    function();
    return true;
  } catch (...) {
    if (is_first_process()) print(std::current_exception());
    return false;
  }
}

// Whether this process finds the devices that the options ask for. What they are is every process's own matter, because
// hosts differ: each says itself what it lacks, or nobody would know whom the others wait for.
bool finds_devices(const LaunchOptions& options) {
  try {
    resolve(options.device);
    return true;
  } catch (const UnavailableError&) {
    const std::exception_ptr lack = std::current_exception();
    const Start start = how_started();
    print(start.launcher == Launcher::alone ? lack : comm::exception_from_rank(start.rank, lack));
    return false;
  }
}

// Null for launch options that are no good, of which a line tells.
std::optional<comm::LaunchArguments> parsed_arguments(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  std::optional<comm::LaunchArguments> parsed;
  succeeds([&] { parsed = comm::parse_launch_arguments(arguments); });
  return parsed;
}

void require_none(Arguments rest) {
  if (!rest.empty()) throw UsageError(fmt::format("unknown argument \"{}\"; --help lists the options", rest.front()));
}

bool asks_for_help(Arguments rest) { return std::find(rest.begin(), rest.end(), "--help") != rest.end(); }

// The exit code.
int print_help(const char* program, std::string_view about) {
  if (!is_first_process()) return exit_success;
  const std::string page = comm::help_page(program, about);
  if (std::fputs(page.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return exit_success;
  print(std::make_exception_ptr(DataError(fmt::format("standard output cannot be written: {}", std::strerror(errno)))));
  return exit_failure;
}

}  // namespace

int run(const LaunchOptions& options, const std::function<void(World&)>& body) {
  make_file_size_limit_an_error();
  bool good = false;
  const bool known = succeeds([&] {
    comm::validate(options);
    good = finds_devices(options);
    if (good) comm::require_launchable(options);
  });
  if (!known || !good) return exit_bad_options;
  std::exception_ptr failure;
  const bool launched = succeeds([&] { failure = comm::launch_ranks(options, {.body = body, .report = print}); });
  return launched && !failure ? exit_success : exit_failure;
}

int run(int argc, char** argv, const std::function<void(World&, Arguments)>& body) {
  const std::optional<comm::LaunchArguments> parsed = parsed_arguments(argc, argv);
  if (!parsed) return exit_bad_options;
  return run(parsed->options, [&](World& world) { body(world, parsed->rest); });
}

int run(int argc, char** argv, std::string_view about, const std::function<void(World&, Arguments)>& body) {
  const std::optional<comm::LaunchArguments> parsed = parsed_arguments(argc, argv);
  if (!parsed) return exit_bad_options;
  if (asks_for_help(parsed->rest)) return print_help(argv[0], about);
  return run(parsed->options, [&](World& world) { body(world, parsed->rest); });
}

int run(int argc, char** argv, std::string_view about, const std::function<void(World&)>& body) {
  const std::optional<comm::LaunchArguments> parsed = parsed_arguments(argc, argv);
  if (!parsed) return exit_bad_options;
  if (asks_for_help(parsed->rest)) return print_help(argv[0], about);
  return succeeds([&] { require_none(parsed->rest); }) ? run(parsed->options, body) : exit_bad_options;
}

int run(int argc, char** argv, const std::function<void(World&)>& body) { return run(argc, argv, "", body); }

}  // namespace tessera
