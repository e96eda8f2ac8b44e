// The command-line tool: `tessera plan` says what a training step will do, hold and take, before anything is allocated,
// `tessera cost` what a job's communication and steps will take, `tessera calibrate` what this machine reaches,
// `tessera checkpoint` what was saved, `tessera trace` what was measured, and `tessera verify-bits` where two runs
// part.
#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "options.hpp"
#include "tessera/trainer/start.hpp"
#include "tessera/version.hpp"

namespace {

constexpr int success = 0;
constexpr int failure = 1;

constexpr std::string_view usage =
    "Usage: tessera plan [options]   the bytes, the traffic and the schedule of a training step; see tessera plan "
    "--help\n"
    "       tessera cost [options]   times of collectives, jobs and scaling; see tessera cost --help\n"
    "       tessera calibrate ...    measures this machine, for the times of tessera plan; see tessera calibrate "
    "--help\n"
    "       tessera checkpoint ...   lists, shows, verifies, exports and compares checkpoints; see tessera checkpoint "
    "--help\n"
    "       tessera trace ...        sums up what --trace of the trainers measured; see tessera trace --help\n"
    "       tessera verify-bits A B  where two training runs part, by the hashes of their steps; see tessera "
    "verify-bits "
    "--help\n"
    "       tessera --version\n"
    "       tessera --help\n";

const std::map<std::string_view, tools::Command> commands = {{"plan", tools::run_plan},
                                                             {"cost", tools::run_cost},
                                                             {"calibrate", tools::run_calibrate},
                                                             {"trace", tools::run_trace},
                                                             {"checkpoint", tools::run_checkpoint},
                                                             {"verify-bits", tools::run_verify_bits}};

int run(const std::vector<std::string>& arguments) {
  if (arguments.empty())
    throw tools::OptionError(
        "a command is missing: tessera plan, tessera cost, tessera calibrate, tessera checkpoint, tessera trace, "
        "tessera verify-bits, or tessera --help");
  const std::string& name = arguments.front();
  if (const auto found = commands.find(name); found != commands.end())
    return found->second({arguments.begin() + 1, arguments.end()}) ? success : failure;
  if (arguments.size() > 1 || (name != "--help" && name != "--version"))
    throw tools::OptionError(fmt::format("unknown command \"{}\": see tessera --help", name));
  fmt::print("{}", name == "--help" ? std::string(usage) : fmt::format("tessera {}\n", tessera::version));
  return success;
}

}  // namespace

int main(int argc, char** argv) {
  return tessera::trainer::run_program([&] { return run({argv + 1, argv + argc}); }, "tessera");
}
