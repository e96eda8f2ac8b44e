// The variables that launchers leave in the environment of their processes.
#include "comm/start.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <vector>

#include "comm/halves.hpp"
#include "tessera/base/error.hpp"

namespace tessera {
namespace comm {

std::string printable(std::string_view value, std::size_t most) {
  std::string text;
  for (const char c : value.substr(0, most)) {
    const bool plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
    text += plain ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return value.size() > most ? text + "…" : text;
}

std::optional<std::string> text_in(const Environment& environment, const char* name) {
  const char* const value = environment(name);
  return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
}

std::optional<std::int64_t> large_number_in(const Environment& environment, const char* name, std::int64_t least,
                                            std::int64_t most) {
  if (environment(name) == nullptr) return std::nullopt;
  const std::string_view value = environment(name);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool whole = error == std::errc() && end == value.data() + value.size();
  if (whole && number >= least && number <= most) return number;
  const std::string limit = most == std::numeric_limits<int>::max() ? "on" : fmt::format("to {}", most);
  throw UsageError(fmt::format(
      "the environment's {} is \"{}\", which is no number from {} {}: unset it, or start the program with the "
      "launcher that owns it",
      name, printable(value), least, limit));
}

std::optional<int> number_in(const Environment& environment, const char* name, int least, int most) {
  const std::optional<std::int64_t> number = large_number_in(environment, name, least, most);
  return number ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

namespace {

struct Variables {
  Launcher launcher;
  const char* by;
  const char* rank;
  const char* ranks;
};

constexpr Variables mpi_launchers[] = {
    {Launcher::mpi, "Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {Launcher::mpi, "MPICH's mpirun", "PMI_RANK", "PMI_SIZE"},
};
constexpr Variables torchrun = {Launcher::torchrun, "torchrun", "RANK", "WORLD_SIZE"};
// A step's variables, not the job's: a batch script has SLURM_NTASKS too, and is one process.
constexpr Variables slurm = {Launcher::slurm, "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"};

std::optional<Start> start_of(const Environment& environment, const Variables& variables) {
  const std::optional<int> rank = number_in(environment, variables.rank, 0);
  const std::optional<int> ranks = number_in(environment, variables.ranks, 1);
  if (!rank || !ranks) return std::nullopt;
  if (*rank >= *ranks) {
    throw UsageError(fmt::format("the environment says {}={} and {}={}, but ranks count from 0", variables.rank, *rank,
                                 variables.ranks, *ranks));
  }
  return Start{.launcher = variables.launcher, .by = variables.by, .rank = *rank, .ranks = *ranks};
}

std::optional<Start> mpi_start(const Environment& environment) {
  for (const Variables& variables : mpi_launchers) {
    if (std::optional<Start> start = start_of(environment, variables)) return start;
  }
  const std::optional<int> rank = number_in(environment, "PMIX_RANK", 0);
  if (!rank || environment("PMIX_NAMESPACE") == nullptr) return std::nullopt;
  const int ranks = number_in(environment, slurm.ranks, 1).value_or(0);
  return Start{.launcher = Launcher::mpi, .by = "a PMIx launcher", .rank = *rank, .ranks = ranks};
}

// Its own sign, and not RANK and WORLD_SIZE alone: those names are anybody's.
std::optional<Start> torchrun_start(const Environment& environment) {
  if (environment("LOCAL_RANK") == nullptr || environment("MASTER_ADDR") == nullptr) return std::nullopt;
  return start_of(environment, torchrun);
}

// With a part of torchrun's variables each process would be a job of one rank, and all would do the same work. Other
// launchers, and scripts, set all but LOCAL_RANK. WORLD_SIZE alone, or 1, is no job of several.
void require_no_half_of_torchrun(const Environment& environment) {
  if (environment("MASTER_ADDR") == nullptr || text_in(environment, torchrun.ranks) == "1") return;
  std::vector<std::string_view> set, missing;
  for (const char* const name : {torchrun.rank, torchrun.ranks, "LOCAL_RANK"}) {
    (environment(name) != nullptr ? set : missing).emplace_back(name);
  }
  const bool says_nothing = set.empty() || (set.size() == 1 && environment(torchrun.rank) == nullptr &&
                                            environment("MASTER_PORT") == nullptr);
  if (missing.empty() || says_nothing) return;
  throw UsageError(
      fmt::format("MASTER_ADDR and {} are set in the environment, as torchrun does, but {} {} not: set what is missing "
                  "(LOCAL_RANK: "
                  "the rank among those of its host), or unset MASTER_ADDR for a program that runs alone",
                  fmt::join(set, ", "), fmt::join(missing, " and "), missing.size() == 1 ? "is" : "are"));
}

std::optional<Start> slurm_start(const Environment& environment) {
  std::optional<Start> start = start_of(environment, slurm);
  return start && start->ranks > 1 ? start : std::nullopt;
}

std::string rank_text(const Start& start) {
  return start.ranks > 0 ? fmt::format("rank {} of {}", start.rank, start.ranks) : fmt::format("rank {}", start.rank);
}

}  // namespace

Start start_of(const LaunchOptions& options) {
  const bool over_nccl = options.nccl_communicator != nullptr;
  if (!options.mpi_communicator && !over_nccl) return how_started();
  if (options.ranks || (options.mpi_communicator && over_nccl)) {
    throw UsageError(
        "the ranks are those of the program's own communicator: leave their number out, and give one only");
  }
  if (over_nccl) return {.launcher = Launcher::alone, .by = "the program's NCCL communicator", .rank = 0, .ranks = 0};
  if (!has_mpi()) {
    throw UnavailableError(
        "the program's MPI communicator cannot be used: this build of Tessera has no MPI half: build it with MPI "
        ""
        "(meson setup -Dmpi=enabled)");
  }
  return {.launcher = Launcher::mpi, .by = "the program's MPI communicator", .rank = 0, .ranks = 0};
}

Start detect_start(const Environment& environment, bool has_mpi) {
  if (has_mpi) {
    if (const auto start = mpi_start(environment)) return *start;
  }
  if (const auto start = torchrun_start(environment)) return *start;
  if (const auto start = slurm_start(environment)) return *start;
  if (!has_mpi) {
    if (const auto start = mpi_start(environment)) return *start;
  }
  require_no_half_of_torchrun(environment);
  return {};
}

void require_startable(const Start& start, const LaunchOptions& options, const Possible& possible) {
  if (start.launcher == Launcher::alone) return;
  if (options.ranks) {
    throw UsageError(
        fmt::format("--ranks {}: {} has started this program as {}, and each of its processes is one rank; leave "
                    "--ranks out, or start the program alone",
                    *options.ranks, start.by, rank_text(start)));
  }
  if (start.launcher == Launcher::mpi && !possible.mpi) {
    throw UnavailableError(
        fmt::format("{} has started this program as {}, but this build of Tessera has no MPI half: build it with MPI "
                    "(meson setup -Dmpi=enabled), start it with torchrun or srun, or alone, with --ranks N for ranks "
                    "that are threads",
                    start.by, rank_text(start)));
  }
  if (!possible.on_devices || possible.nccl) return;
  throw UnavailableError(
      fmt::format("{} has started this program as {}, and processes with CUDA devices exchange data over NCCL, which "
                  "this build of Tessera does not have: build it where nccl.h is, or add --device cpu",
                  start.by, rank_text(start)));
}

void require_agreement(const Start& said, const Start& known) {
  if (said.rank == known.rank && (said.ranks == 0 || said.ranks == known.ranks)) return;
  throw UsageError(fmt::format(
      "the environment says that {} has started this process as rank {} of {}, but MPI says that it is rank "
      "{} of {}: start it with the mpirun of the MPI that it is built with, in an environment without "
      "another launcher's variables",
      said.by, said.rank, said.ranks == 0 ? "some" : fmt::to_string(said.ranks), known.rank, known.ranks));
}

bool uses_nccl(const Start& start, const LaunchOptions& options, bool on_devices) {
  return options.nccl_communicator != nullptr || options.backend == BackendChoice::nccl ||
         (on_devices && start.launcher != Launcher::alone);
}

void require_backend(const Start& start, const LaunchOptions& options, bool on_devices) {
  if (options.sums == SumChoice::fast && !uses_nccl(start, options, on_devices)) {
    throw UsageError(
        "--sums fast: only NCCL forms sums in an order of its own; add --backend nccl, or leave --sums out");
  }
  if (options.backend != BackendChoice::nccl || on_devices || options.nccl_communicator != nullptr) return;
  throw UsageError("--backend nccl: ranks compute on the CPU here; NCCL needs --device cuda and GPUs");
}

std::string start_line(const Start& start, const Place& place, int threads) {
  const auto counted = [](int count, const char* noun) {
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
  };
  return fmt::format("{} on {}, processes of {}; on this host {} with {} each, on the CPU",
                     counted(place.ranks, "rank"), counted(place.hosts, "host"), start.by,
                     counted(static_cast<int>(place.here.size()), "rank"), counted(threads, "thread"));
}

}  // namespace comm

Start how_started() {
  return comm::detect_start([](const char* name) { return std::getenv(name); }, comm::has_mpi());
}

bool is_first_process() noexcept {
  try {
    return how_started().rank == 0;
  } catch (...) {
    return true;
  }
}

}  // namespace tessera
