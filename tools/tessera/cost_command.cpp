// `tessera cost`: the commands below it.
#include "commands.hpp"

#include <string_view>

#include "options.hpp"

namespace tools {

namespace {

constexpr std::string_view cost_usage = R"(Usage: tessera cost SUBCOMMAND [options]

  allreduce  bytes and time of a ring all-reduce, and what of it a step hides
             tessera cost allreduce --bytes 100MB --ranks 4 --bandwidth 1.25GB/s --compute 300ms
  job        global batch, steps, time and learning rate of a training job
             tessera cost job --samples 1.28M --batch 256 --ranks 4 --throughput 200 --lr 0.1 --epochs 90
  scaling    Amdahl's speed-up and efficiency
             tessera cost scaling --serial-fraction 0.01,0.1 --plot scaling.svg
  chart      all-reduce time by model size and kind of link
             tessera cost chart --ranks 8 --dtype bf16 --plot allreduce.svg

Each has --help and --json. Numbers take the units that people write: 100MB, 64MiB, 10Gbit/s, 5us, 1.28M, 30%.
Exit code: 0; 1 when a figure cannot be drawn; 2 for bad options.
)";

}  // namespace

bool run_cost(std::vector<std::string> arguments) {
  return run_subcommand({.command = "tessera cost",
                         .names = "allreduce, job, scaling or chart",
                         .usage = cost_usage,
                         .commands = {{"allreduce", run_cost_allreduce},
                                      {"job", run_cost_job},
                                      {"scaling", run_cost_scaling},
                                      {"chart", run_cost_chart}}},
                        arguments);
}

}  // namespace tools
