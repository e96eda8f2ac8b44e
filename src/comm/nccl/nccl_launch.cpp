// The launches over NCCL: threads of one process, which find each other in their common memory, and this process as one
// of several, which meet over TCP.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "comm/control/thread_control.hpp"
#include "comm/launch.hpp"
#include "comm/launch_options.hpp"
#include "comm/mpi/process_job.hpp"
#include "comm/nccl/nccl_backend.hpp"
#include "comm/rendezvous/join.hpp"
#include "comm/rendezvous/rendezvous_control.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera::comm {
namespace {

// The library that TESSERA_NCCL names, or the system's. Throws as open_nccl() does.
std::unique_ptr<NcclLibrary> open_chosen_nccl() {
  const char* const path = std::getenv("TESSERA_NCCL");
  return open_nccl(path == nullptr ? "" : path);
}

NcclOptions nccl_options(const LaunchOptions& options) {
  return {.sums = options.sums == SumChoice::fast ? NcclSums::fast : NcclSums::ranked};
}

// The job is left while NCCL is still watched.
template <typename FindHosts>
std::exception_ptr run_in(NcclJob& job, const LaunchOptions& options, RankLog& log, const Body& body,
                          const FindHosts& find_hosts) {
  return run_rank(job.control(), log, body,
                  [&] { return std::make_unique<NcclBackend>(job, threads_per_rank(options), log, find_hosts()); });
}

// ---- processes ----

void say_start(const Start& start, const NcclJob& job, RankLog& log) {
  const std::string text = fmt::format("{} rank{}, processes of {}, each on a CUDA device; {}", start.ranks,
                                       start.ranks == 1 ? "" : "s", start.by, job.in_words());
  log.line(
      fmt::format("rank {} begins in process {} on {}: {}", start.rank, ::getpid(), to_string(job.device()), text));
  if (start.rank == 0) fmt::print(stderr, "tessera: {}\n", text);
}

}  // namespace

std::exception_ptr run_over_nccl(const MeetingPoint& point, const ProcessStart& how, const Launched& launched) {
  const Device device = Device::cuda(point.place.local_rank % cuda_device_count());
  const std::unique_ptr<NcclLibrary> library = open_chosen_nccl();
  RendezvousControl control(join_options(point.place, how.start, how.options.timeout), how.options.timeout);
  std::exception_ptr thrown;
  {
    NcclJob job(*library, control, device, nccl_options(how.options));
    say_start(how.start, job, how.log);
    const QuietOutput quiet(how.options, how.start.rank);
    thrown = run_in(job, how.options, how.log, launched.body, [&] {
      RendezvousIntroduction introduction(control);
      return find_place(introduction, how.options.timeout).of_meshes();
    });
  }
  return outcome_of_process(control, how.log, thrown, launched);
}

RunThread nccl_threads(const LaunchOptions& options, ThreadControlRoom& room) {
  const std::shared_ptr<NcclLibrary> library = open_chosen_nccl();
  const int devices = cuda_device_count();
  if (room.size() > devices && !library->shares_devices()) {
    throw UnavailableError(
        fmt::format("--backend nccl: {} ranks for {} CUDA device{}, and {} gives each rank one of its own (2.30 and "
                    "later share them with NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment); use --ranks {}, or leave "
                    "--backend out",
                    room.size(), devices, devices == 1 ? "" : "s", library->name(), devices));
  }
  return [library, &options](ThreadControl& control, RankLog& log, const Body& body) {
    NcclJob job(*library, control, Device::cuda(control.rank() % cuda_device_count()), nccl_options(options));
    if (control.rank() == 0) {
      fmt::print(stderr, "tessera: {} rank{}, threads of one process, on CUDA devices; {}\n", control.size(),
                 control.size() == 1 ? "" : "s", job.in_words());
    }
    return run_in(job, options, log, body, [] { return Hosts{}; });
  };
}

}  // namespace tessera::comm
