// launch(): ranks as threads of this process, or this process as one rank of several. For threads, what decides its
// outcome is the job's first failure, not which rank's thread ended first: the AbortedErrors of the other ranks are
// consequences.
#include <fmt/format.h>
#include <unistd.h>

#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "comm/launch.hpp"
#include "comm/launch_options.hpp"
#include "comm/local/local_threads.hpp"
#include "comm/mpi/mpi_launch.hpp"
#include "comm/nccl/nccl_launch.hpp"
#include "comm/nccl/nccl_library.hpp"
#include "comm/nccl/nccl_threads.hpp"
#include "comm/rank_error.hpp"
#include "comm/rank_log.hpp"
#include "comm/start.hpp"
#include "comm/thread_job.hpp"
#include "tessera/base/error.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera {
namespace {

using Body = std::function<void(World&)>;

class RankThreads {
 public:
  RankThreads(comm::ThreadJob& job, const LaunchOptions& options, const Body& body)
      : job_(job), options_(options), body_(body), thrown_(static_cast<std::size_t>(job.size())) {}

  void run() {
    std::vector<std::thread> threads;
    if (start(threads)) run_rank(0);
    for (std::thread& thread : threads) thread.join();
  }

  // The first cause, if the job failed; else null. After run().
  std::exception_ptr failure() const {
    const comm::JobFailure* failure = job_.failure();
    if (failure == nullptr) return nullptr;
    const std::exception_ptr cause = comm::first_cause(*failure, thrown_[static_cast<std::size_t>(failure->rank)]);
    return job_.size() == 1 ? cause : comm::exception_from_rank(failure->rank, cause);
  }

 private:
  // Whether every rank but 0 has its thread; otherwise the job is aborted, and those that run will end.
  bool start(std::vector<std::thread>& threads) {
    for (int rank = 1; rank < job_.size(); ++rank) {
      try {
        threads.emplace_back([this, rank] { run_rank(rank); });
      } catch (const std::system_error& error) {
        const std::string cause = fmt::format("cannot start the rank's thread: {}", error.what());
        job_.abort(rank, cause, std::make_exception_ptr(UnavailableError(cause)));
        return false;
      }
    }
    return true;
  }

  void run_rank(int rank) noexcept {
    try {
      comm::RankLog log(options_.log_dir, rank);
      run_rank(rank, log);
    } catch (...) {
      std::exception_ptr& thrown = thrown_[static_cast<std::size_t>(rank)];
      thrown = std::current_exception();
      job_.abort(rank, comm::text_of(thrown), thrown);
    }
    job_.leave(rank);
  }

  void run_rank(int rank, comm::RankLog& log) {
    log.line(fmt::format("rank {} of {} begins, a thread of process {}", rank, job_.size(), ::getpid()));
    try {
      job_.run_rank(rank, log, body_);
      log.line("ended");
    } catch (...) {
      log.line(fmt::format("error: {}", comm::text_of(std::current_exception())));
      throw;
    }
  }

  comm::ThreadJob& job_;
  const LaunchOptions& options_;
  const Body& body_;
  std::vector<std::exception_ptr> thrown_;  // by rank
};

std::unique_ptr<comm::ThreadJob> job_of_threads(const LaunchOptions& options) {
  if (options.backend == BackendChoice::nccl) return std::make_unique<comm::NcclThreads>(options);
  return std::make_unique<comm::LocalThreads>(options);
}

std::exception_ptr launch_threads(const LaunchOptions& options, const comm::Launched& launched) {
  const std::unique_ptr<comm::ThreadJob> job = job_of_threads(options);
  RankThreads ranks(*job, options, launched.body);
  ranks.run();
  const std::exception_ptr failure = ranks.failure();
  if (failure) launched.report(failure);
  return failure;
}

}  // namespace

void comm::require_launchable(const LaunchOptions& options) {
  validate(options);
  const bool on_devices = resolve(options.device) == DeviceKind::cuda;
  const Start start = how_started();
  require_startable(start, options, {.mpi = has_mpi(), .nccl = on_devices && has_nccl()});
  require_backend(start, options, on_devices);
}

DeviceKind resolve(DeviceChoice choice) {
  if (choice == DeviceChoice::cpu) return DeviceKind::cpu;
  if (cuda_device_count() > 0) return DeviceKind::cuda;
  if (choice == DeviceChoice::automatic) return DeviceKind::cpu;
  throw UnavailableError(fmt::format("--device cuda: {}; use --device cpu", why_no_cuda()));
}

std::exception_ptr comm::launch_ranks(const LaunchOptions& options, const Launched& launched) {
  require_launchable(options);
  const Start start = how_started();
  switch (start.launcher) {
    case Launcher::mpi: return launch_process(start, options, launched);
    case Launcher::torchrun:
    case Launcher::slurm: return launch_nccl_process(start, options, launched);
    case Launcher::alone: break;
  }
  return launch_threads(options, launched);
}

void launch(const LaunchOptions& options, const std::function<void(World&)>& body) {
  const std::exception_ptr failure = comm::launch_ranks(options, {.body = body, .report = [](const auto&) {}});
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera
