// One rank of several processes over NCCL. What decides the job's outcome is its first failure; the process where it
// happened tells the user, and the others end after that, so that no launcher cuts it short.
#include "comm/nccl/nccl_launch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "comm/launch_options.hpp"
#include "comm/nccl/nccl_backend.hpp"
#include "comm/nccl/nccl_start.hpp"
#include "comm/quiet_output.hpp"
#include "comm/rank_error.hpp"
#include "comm/rendezvous/meeting_place.hpp"
#include "comm/rendezvous/rendezvous_control.hpp"
#include "comm/rendezvous/server.hpp"
#include "tessera/base/error.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera::comm {
namespace {

// Processes that are started together do not come together: the last one may still be loading.
constexpr std::chrono::milliseconds least_start_timeout{60'000};

const char* variable(const char* name) { return std::getenv(name); }

std::unique_ptr<RendezvousServer> server_of(const MeetingPlace& place, const Start& start,
                                            const LaunchOptions& options) {
  if (start.rank != 0) return nullptr;
  ServerOptions server;
  server.endpoint = place.endpoint;
  server.token = place.token;
  server.ranks = start.ranks;
  server.timeout = options.timeout;
  return std::make_unique<RendezvousServer>(server);
}

JoinOptions join_options(const MeetingPlace& place, const Start& start, const LaunchOptions& options) {
  JoinOptions join;
  join.endpoint = place.endpoint;
  join.token = place.token;
  join.rank = start.rank;
  join.ranks = start.ranks;
  join.start_timeout = std::max(options.timeout, least_start_timeout);
  return join;
}

void say_start(const Start& start, const NcclJob& job, RankLog& log) {
  const std::string text = fmt::format("{} rank{}, processes of {}, each on a CUDA device; {}", start.ranks,
                                       start.ranks == 1 ? "" : "s", start.by, job.in_words());
  log.line(
      fmt::format("rank {} begins in process {} on {}: {}", start.rank, ::getpid(), to_string(job.device()), text));
  if (start.rank == 0) fmt::print(stderr, "tessera: {}\n", text);
}

// What this process's rank threw, or null.
std::exception_ptr run_rank(NcclJob& job, int threads, RankLog& log, const std::function<void(World&)>& body) {
  try {
    World world(std::make_unique<NcclBackend>(job, threads, log));
    body(world);
    return nullptr;
  } catch (...) {
    const std::exception_ptr thrown = std::current_exception();
    job.control().abort(text_of(thrown), thrown);
    log.line(fmt::format("error: {}", text_of(thrown)));
    return thrown;
  }
}

std::exception_ptr outcome(RendezvousControl& control, const std::exception_ptr& thrown, const Launched& launched) {
  const JobFailure* const failure = control.failure();
  if (failure == nullptr) return nullptr;
  if (failure->rank == control.rank()) {
    const std::exception_ptr cause = exception_from_rank(control.rank(), first_cause(*failure, thrown));
    launched.report(cause);
    control.say_reported();
    return cause;
  }
  const auto cause = std::make_exception_ptr(AbortedError(fmt::format("rank {}: {}", failure->rank, failure->cause)));
  if (!control.wait_for_report()) launched.report(cause);
  return cause;
}

std::exception_ptr run_process(const Start& start, const LaunchOptions& options, const Launched& launched) {
  const MeetingPlace place = meeting_place(variable, start);
  const Device device = Device::cuda(place.local_rank % cuda_device_count());
  const std::unique_ptr<NcclLibrary> library = open_chosen_nccl();
  RankLog log(options.log_dir, start.rank);
  const std::unique_ptr<RendezvousServer> server = server_of(place, start, options);
  RendezvousControl control(join_options(place, start, options), options.timeout);
  std::exception_ptr thrown;
  {
    NcclJob job(*library, control, device, nccl_options(options));
    say_start(start, job, log);
    const QuietOutput quiet(options, start.rank);
    thrown = run_rank(job, threads_per_rank(options), log, launched.body);
    control.leave();
  }
  const std::exception_ptr failure = outcome(control, thrown, launched);
  log.line(failure ? fmt::format("failed: {}", text_of(failure)) : "ended");
  return failure;
}

}  // namespace

std::exception_ptr launch_nccl_process(const Start& start, const LaunchOptions& options, const Launched& launched) {
  try {
    return run_process(start, options, launched);
  } catch (...) {  // before there was a job: the other processes say so themselves
    const std::exception_ptr failure = exception_from_rank(start.rank, std::current_exception());
    launched.report(failure);
    return failure;
  }
}

}  // namespace tessera::comm
