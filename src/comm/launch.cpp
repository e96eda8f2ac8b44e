// launch(): how ranks come together (threads that are started here, processes that their launcher's variables, MPI, or
// a communicator of the program's introduce), and over which transport they exchange data.
#include "comm/launch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "comm/halves.hpp"
#include "comm/launch_options.hpp"
#include "comm/local/local_threads.hpp"
#include "comm/mpi/mpi_introduction.hpp"
#include "comm/nccl/nccl_launch.hpp"
#include "comm/processes/process_launch.hpp"
#include "comm/start.hpp"
#include "comm/transport.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

// ---- ranks that are threads ----

namespace {

class RankThreads {
 public:
  RankThreads(const LaunchOptions& options, const comm::Transport& transport, const comm::Body& body)
      : room_(options.ranks.value_or(1), options.timeout),
        run_(transport.threads(options, room_)),
        options_(options),
        body_(body),
        thrown_(static_cast<std::size_t>(room_.size())) {}

  void run() {
    std::vector<std::thread> threads;
    if (start(threads)) run_rank(0);
    for (std::thread& thread : threads) thread.join();
  }

  // The first cause, if the job failed; else null. After run().
  std::exception_ptr failure() const {
    const comm::JobFailure* failure = room_.failure();
    if (failure == nullptr) return nullptr;
    const std::exception_ptr cause = comm::first_cause(*failure, thrown_[static_cast<std::size_t>(failure->rank)]);
    return room_.size() == 1 ? cause : comm::exception_from_rank(failure->rank, cause);
  }

 private:
  // Whether every rank but 0 has its thread; otherwise the job is aborted, and those that run will end.
  bool start(std::vector<std::thread>& threads) {
    for (int rank = 1; rank < room_.size(); ++rank) {
      try {
        threads.emplace_back([this, rank] { run_rank(rank); });
      } catch (const std::system_error& error) {
        const std::string cause = fmt::format("cannot start the rank's thread: {}", error.what());
        room_.abort(rank, cause, std::make_exception_ptr(UnavailableError(cause)));
        return false;
      }
    }
    return true;
  }

  void run_rank(int rank) noexcept {
    std::exception_ptr& thrown = thrown_[static_cast<std::size_t>(rank)];
    try {
      comm::RankLog log(options_.log_dir, rank);
      log.line(fmt::format("rank {} of {} begins, a thread of process {}", rank, room_.size(), ::getpid()));
      comm::ThreadControl control(room_, rank);
      thrown = run_(control, log, body_);
      if (!thrown) log.line("ended");
    } catch (...) {
      thrown = std::current_exception();
      room_.abort(rank, comm::text_of(thrown), thrown);
    }
  }

  comm::ControlRoom room_;
  const comm::RunThread run_;
  const LaunchOptions& options_;
  const comm::Body& body_;
  std::vector<std::exception_ptr> thrown_;  // by rank
};

std::exception_ptr launch_threads(const LaunchOptions& options, const comm::Transport& transport,
                                  const comm::Launched& launched) {
  RankThreads ranks(options, transport, launched.body);
  ranks.run();
  const std::exception_ptr failure = ranks.failure();
  if (failure) launched.report(failure);
  return failure;
}

// ---- ranks that are processes ----

std::exception_ptr launch_introduced(comm::Introduction& introduction, const Start& start, const LaunchOptions& options,
                                     const comm::Transport& transport, const comm::Launched& launched) {
  Start known = start;
  known.rank = introduction.rank();
  known.ranks = introduction.size();
  const bool own_communicator = options.mpi_communicator || options.nccl_communicator != nullptr;
  const auto run = [&](const comm::ProcessStart& how) {
    if (!own_communicator) comm::require_agreement(start, known);
    return transport.introduced(introduction, how);
  };
  const std::exception_ptr failure = comm::launch_one(known, options, launched, run);
  if (failure) introduction.abandon();
  return failure;
}

// ---- launch() ----

constexpr comm::Transport host_memory{.threads = comm::local_threads,
                                      .at_rendezvous = comm::run_processes_at_rendezvous,
                                      .introduced = comm::run_processes_introduced};
constexpr comm::Transport over_nccl{.threads = comm::nccl_threads,
                                    .at_rendezvous = comm::run_nccl_at_rendezvous,
                                    .introduced = comm::run_nccl_introduced};

}  // namespace

void comm::require_launchable(const LaunchOptions& options) {
  validate(options);
  const bool on_devices = resolve(options.device) == DeviceKind::cuda;
  const Start start = start_of(options);
  require_startable(start, options, {.mpi = has_mpi(), .nccl = has_nccl(), .on_devices = on_devices});
  require_backend(start, options, on_devices);
}

std::exception_ptr comm::launch_ranks(const LaunchOptions& options, const Launched& launched) {
  require_launchable(options);
  const Start start = start_of(options);
  const bool on_devices = resolve(options.device) == DeviceKind::cuda;
  const Transport& transport = uses_nccl(start, options, on_devices) ? over_nccl : host_memory;
  if (options.nccl_communicator != nullptr) {
    const auto introduction = introduce_over_nccl(options.nccl_communicator);
    return launch_introduced(*introduction, start, options, transport, launched);
  }
  switch (start.launcher) {
    case Launcher::mpi: {
      const MpiDeadlines deadlines{.start = start_timeout(options.timeout), .end = options.timeout};
      return launch_introduced(introduce_over_mpi(options.mpi_communicator, deadlines), start, options, transport,
                               launched);
    }
    case Launcher::torchrun:
    case Launcher::slurm: return launch_one(start, options, launched, transport.at_rendezvous);
    case Launcher::alone: break;
  }
  return launch_threads(options, transport, launched);
}

void launch(const LaunchOptions& options, const std::function<void(World&)>& body) {
  const std::exception_ptr failure = comm::launch_ranks(options, {.body = body, .report = [](const auto&) {}});
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera
