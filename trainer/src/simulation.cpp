// The options of a simulated rank.
#include "trainer/src/simulation.hpp"

#include <fmt/format.h>

#include <string>

#include "tessera/trainer/number_text.hpp"

namespace tessera::trainer {

namespace {

constexpr std::size_t most_simulated_ranks = std::size_t{1} << 20;

void require_known_backend(const std::string& backend) {
  if (backend != "nccl") return;
  throw OptionError(fmt::format(
      "--simulate-backend {}: the simulation has no such backend: what NCCL's library holds on a GPU cannot "
      "be known here; local, the default, holds nothing, and mpi nothing on one host",
      backend));
}

// Two areas of 1 MiB for each rank of the job, in each of a model's two communicators (docs/launch.md).
std::size_t staging_mebibytes(std::size_t ranks) { return 2 * 2 * ranks; }

void note_what_it_is(const CommandLine& line, RunOptions& options) {
  options.notes.push_back(
      fmt::format("a simulation: layout, plan and memory are those of rank {} of {}, but nothing travels. Losses and "
                  "norms are of this rank's own samples, with zeros in place of what other ranks hold: they say "
                  "nothing of a training. Nothing is evaluated, and no text written",
                  grouped(options.simulated->rank), grouped(options.simulated->ranks)));
  if (options.simulation.backend == "mpi") {
    options.notes.push_back(
        fmt::format("with mpi, ranks of one host read each other's arenas, and hold nothing beside them. With several "
                    "hosts, the ranks of each share staging areas of up to {} MiB",
                    staging_mebibytes(options.simulated->ranks)));
  }
  for (const char* name : {"--timeout", "--eval-every", "--eval-batches"}) {
    if (line.given(name)) options.notes.push_back(fmt::format("{} is without effect in a simulation", name));
  }
}

}  // namespace

void add_simulation_options(CommandLine& line, RunOptions& options) {
  Simulation& asked = options.simulation;
  line.whole("--simulate-world", asked.ranks, {1, most_simulated_ranks},
             "Run one rank of an imagined job of so many: its layout, plan and memory, without its peers");
  line.whole("--rank", asked.rank, {0, most_simulated_ranks - 1}, "Which rank of --simulate-world that is [0]");
  line.real("--simulate-latency", asked.latency_microseconds, {0, 1e9},
            "Microseconds that each of its collectives takes, whatever it moves");
  line.real("--simulate-bandwidth", asked.gigabytes_per_second, {0, 1e6},
            "GB/s of a rank's link, in a ring of the group's ranks; 0: bytes take no time");
  std::vector<Choice> backends;
  for (const char* name : {"local", "mpi", "nccl"}) {
    backends.push_back({name, [&asked, name] { asked.backend = name; }});
  }
  line.choice("--simulate-backend", backends,
              "What the imagined job communicates with, for what that holds beside the plan [local: nothing]; mpi: "
              "nothing on one host, and says what on several");
}

void check_simulation_options(const CommandLine& line, RunOptions& options) {
  const Simulation& asked = options.simulation;
  if (!asked.ranks) {
    for (const char* name : {"--rank", "--simulate-backend", "--simulate-latency", "--simulate-bandwidth"}) {
      if (line.given(name)) throw OptionError(fmt::format("{} needs --simulate-world", name));
    }
    return;
  }
  for (const char* name : {"--ranks", "--dump-weights"}) {
    if (!line.given(name)) continue;
    throw OptionError(
        fmt::format("{} and --simulate-world exclude each other: one rank runs, the others are imagined", name));
  }
  const std::size_t rank = asked.rank.value_or(0);
  if (rank >= *asked.ranks) {
    throw OptionError(
        fmt::format("--rank {} is none of the {} ranks of --simulate-world, which count from 0", rank, *asked.ranks));
  }
  require_known_backend(asked.backend);
  options.simulated = {.rank = rank, .ranks = *asked.ranks};
  note_what_it_is(line, options);
}

}  // namespace tessera::trainer
