// One rank of several processes: its World, and how it ends. What decides the job's outcome is its first failure; the
// process where it happened tells the user, and the others end after that, so that no launcher cuts it short.
#include "comm/mpi/mpi_launch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "comm/mpi/process_backend.hpp"
#include "comm/mpi/process_job.hpp"
#include "comm/quiet_output.hpp"
#include "comm/rank_error.hpp"
#include "comm/rank_log.hpp"
#include "comm/start.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

// While it lives, exit() in the middle of the job is a failure that the other ranks hear of.
class NoEarlyEnd {
 public:
  NoEarlyEnd(MpiProcess& process, ProcessJob& job) : process_(process) {
    process_.on_early_end([&job] { job.abort("the process called exit() in the middle of the job", nullptr); });
  }
  ~NoEarlyEnd() { process_.on_early_end(nullptr); }
  NoEarlyEnd(const NoEarlyEnd&) = delete;
  NoEarlyEnd& operator=(const NoEarlyEnd&) = delete;

 private:
  MpiProcess& process_;
};

void say_start(const Start& start, const ProcessJob& job, const StartLine& facts, RankLog& log) {
  const std::string text = start_line(start, facts);
  log.line(fmt::format("rank {} begins in process {}: {}", job.place().rank, ::getpid(), text));
  if (job.place().rank == 0) fmt::print(stderr, "tessera: {}\n", text);
}

// What this process's rank threw, or null.
std::exception_ptr run_rank(ProcessJob& job, int threads, RankLog& log, const std::function<void(World&)>& body) {
  try {
    World world(std::make_unique<ProcessBackend>(job, threads, log));
    body(world);
    return nullptr;
  } catch (...) {
    const std::exception_ptr thrown = std::current_exception();
    job.abort(text_of(thrown), thrown);
    log.line(fmt::format("error: {}", text_of(thrown)));
    return thrown;
  }
}

std::exception_ptr outcome(ProcessJob& job, const std::exception_ptr& thrown, const Launched& launched) {
  const JobFailure* const failure = job.failure();
  if (failure == nullptr) return nullptr;
  const int here = job.place().rank;
  if (failure->rank == here) {
    const std::exception_ptr cause = exception_from_rank(here, first_cause(*failure, thrown));
    launched.report(cause);
    job.say_reported();
    return cause;
  }
  const auto cause = std::make_exception_ptr(AbortedError(fmt::format("rank {}: {}", failure->rank, failure->cause)));
  if (!job.wait_for_report()) launched.report(cause);
  return cause;
}

}  // namespace

bool has_mpi() { return true; }

std::exception_ptr launch_process(const Start& start, const LaunchOptions& options, const Launched& launched) {
  MpiProcess& process = MpiProcess::instance();
  try {
    RankLog log(options.log_dir, process.rank());
    ProcessJob job(process, options.timeout);
    const NoEarlyEnd no_early_end(process, job);
    const QuietOutput quiet(options, process.rank());
    const StartLine facts{.ranks = process.size(),
                          .hosts = job.place().hosts,
                          .ranks_here = static_cast<int>(job.place().here.size()),
                          .threads = options.threads.value_or(job.cores_per_rank())};
    say_start(start, job, facts, log);
    const std::exception_ptr thrown = run_rank(job, facts.threads, log, launched.body);
    job.leave();
    const std::exception_ptr failure = outcome(job, thrown, launched);
    log.line(failure ? fmt::format("failed: {}", text_of(failure)) : "ended");
    if (failure) process.abandon();
    return failure;
  } catch (...) {  // before there was a job: the other processes do not know
    process.abandon();
    const std::exception_ptr failure = exception_from_rank(process.rank(), std::current_exception());
    launched.report(failure);
    return failure;
  }
}

}  // namespace tessera::comm
