// run(): launch() for a main function. Every failure is one line on stderr and an exit code.
#include "tessera/comm/run.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "comm/launch.hpp"
#include "comm/launch_options.hpp"
#include "comm/rank_error.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/start.hpp"

namespace tessera {
namespace {

constexpr int exit_success = 0;
constexpr int exit_failure = 1;
constexpr int exit_bad_options = 2;

void print(const std::exception_ptr& failure) { fmt::print(stderr, "error: {}\n", comm::text_of(failure)); }

// Of several processes that were started with the same options the first one speaks. Where even that cannot be known,
// everybody does.
bool speaks() {
  try {
    return how_started().rank == 0;
  } catch (const Error&) {
    return true;
  }
}

// Whether `function` returned; what it throws becomes a line.
template <typename Function>
bool succeeds(Function&& function) {
  try {
    function();
    return true;
  } catch (...) {
    if (speaks()) print(std::current_exception());
    return false;
  }
}

std::vector<std::string> arguments_after_name(int argc, char** argv) {
  return argc > 1 ? std::vector<std::string>(argv + 1, argv + argc) : std::vector<std::string>();
}

void require_none(Arguments rest) {
  if (!rest.empty()) throw UsageError(fmt::format("unknown argument \"{}\"", rest.front()));
}

}  // namespace

int run(const LaunchOptions& options, const std::function<void(World&)>& body) {
  if (!succeeds([&] { comm::require_launchable(options); })) return exit_bad_options;
  std::exception_ptr failure;
  const bool launched = succeeds([&] { failure = comm::launch_ranks(options, {.body = body, .report = print}); });
  return launched && !failure ? exit_success : exit_failure;
}

int run(int argc, char** argv, const std::function<void(World&, Arguments)>& body) {
  comm::LaunchArguments parsed;
  if (!succeeds([&] { parsed = comm::parse_launch_arguments(arguments_after_name(argc, argv)); })) {
    return exit_bad_options;
  }
  return run(parsed.options, [&](World& world) { body(world, parsed.rest); });
}

int run(int argc, char** argv, const std::function<void(World&)>& body) {
  comm::LaunchArguments parsed;
  const bool valid = succeeds([&] {
    parsed = comm::parse_launch_arguments(arguments_after_name(argc, argv));
    require_none(parsed.rest);
  });
  return valid ? run(parsed.options, body) : exit_bad_options;
}

}  // namespace tessera
