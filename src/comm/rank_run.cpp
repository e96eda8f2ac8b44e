// A failure of the job is what the first rank that failed says; what the others throw after it are consequences.
#include "comm/rank_run.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "comm/pinned.hpp"
#include "tessera/base/error.hpp"

namespace tessera {
namespace {

// While it lives, exit() anywhere in the process is a failure of the job: the other ranks hear of it, the user does,
// and the code is not 0.
class RunningRank : comm::Pinned {
 public:
  explicit RunningRank(comm::JobMember& job) : job_(job) {
    static const int registered = std::atexit(end_early);
    static_cast<void>(registered);
    process_ = ::getpid();
    const std::lock_guard lock(mutex_);
    before_ = std::exchange(newest_, this);
    outer_ = std::exchange(of_this_thread_, this);
  }
  ~RunningRank() {
    const std::lock_guard lock(mutex_);
    RunningRank** place = &newest_;
    while (*place != this) place = &(*place)->before_;
    *place = before_;
    of_this_thread_ = outer_;
  }

 private:
  // On whichever thread called exit(). No rank ends while the mutex is held, so their jobs are there.
  static void end_early() {
    if (::getpid() != process_) return;  // a child that the program forked: its end is its own
    const std::lock_guard lock(mutex_);
    if (newest_ == nullptr) return;
    comm::JobMember& job = (of_this_thread_ != nullptr ? of_this_thread_ : newest_)->job_;
    constexpr const char* cause = "the process called exit() in the middle of the job";
    job.abort(cause, nullptr);
    comm::say(fmt::format("error: rank {}: {}\n", job.rank(), cause));
    job.say_reported();
    std::fflush(stdout);
    ::_exit(1);
  }

  // Their types need no destruction: they are there as long as the process.
  inline static std::mutex mutex_;
  inline static RunningRank* newest_ = nullptr;
  inline static std::atomic<pid_t> process_ = 0;  // that launched last
  inline static thread_local RunningRank* of_this_thread_ = nullptr;

  comm::JobMember& job_;
  RunningRank* before_ = nullptr;
  RunningRank* outer_ = nullptr;  // a rank may launch a job of its own
};

}  // namespace

std::exception_ptr comm::run_rank(JobMember& job, RankLog& log, const Body& body,
                                  const std::function<std::unique_ptr<World::Backend>()>& make_backend) {
  std::exception_ptr thrown;
  const RunningRank running(job);
  try {
    World world(make_backend());
    body(world);
  } catch (...) {
    thrown = std::current_exception();
    job.abort(text_of(thrown), thrown);
    log.line(fmt::format("error: {}", text_of(thrown)));
  }
  job.leave();
  return thrown;
}

std::exception_ptr comm::launch_one(const Start& start, const LaunchOptions& options, const Launched& launched,
                                    const std::function<std::exception_ptr(const ProcessStart&)>& run) {
  try {
    RankLog log(options.log_dir, start.rank);
    return run({.start = start, .options = options, .launched = launched, .log = log});
  } catch (...) {
    const std::exception_ptr failure = exception_from_rank(start.rank, std::current_exception());
    launched.report(failure);
    return failure;
  }
}

void comm::say_start(const ProcessStart& how, const std::string& facts) {
  how.log.line(fmt::format("rank {} begins in process {}: {}", how.start.rank, ::getpid(), facts));
  if (how.start.rank == 0) say(fmt::format("tessera: {}\n", facts));
}

std::exception_ptr comm::outcome_of_process(JobMember& job, const ProcessStart& how, const std::exception_ptr& thrown) {
  const JobFailure* const failure = job.failure();
  if (failure == nullptr) return how.log.line("ended"), nullptr;
  std::exception_ptr cause;
  if (failure->rank == job.rank()) {
    cause = exception_from_rank(failure->rank, first_cause(*failure, thrown));
    how.launched.report(cause);
    job.say_reported();
  } else {
    cause = std::make_exception_ptr(AbortedError(text_from_rank(failure->rank, failure->cause)));
    if (!job.wait_for_report()) how.launched.report(cause);
  }
  how.log.line(fmt::format("failed: {}", text_of(cause)));
  return cause;
}

}  // namespace tessera
