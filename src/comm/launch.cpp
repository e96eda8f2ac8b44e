// launch() and run(). For ranks that are threads, what decides the outcome is the job's first failure, not which rank's
// thread ended first: the AbortedErrors of the other ranks are consequences. For a main function every failure is one
// line on stderr and an exit code.
#include "comm/launch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "comm/launch_options.hpp"
#include "comm/nccl/nccl_library.hpp"
#include "comm/pinned.hpp"
#include "comm/start.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/file_size_limit.hpp"
#include "tessera/device/cuda.hpp"

namespace tessera {
namespace {

constexpr int exit_success = 0;
constexpr int exit_failure = 1;
constexpr int exit_bad_options = 2;

}  // namespace

// ---- what every launch does with a rank ----

namespace {

// While it lives, exit() anywhere in the process is a failure of the job: the other ranks hear of it, the user does,
// and the code is not 0.
class RunningRank : comm::Pinned {
 public:
  explicit RunningRank(comm::Membership& job) : job_(job) {
    static const int registered = std::atexit(end_early);
    static_cast<void>(registered);
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
    const std::lock_guard lock(mutex_);
    if (newest_ == nullptr) return;
    comm::Membership& job = (of_this_thread_ != nullptr ? of_this_thread_ : newest_)->job_;
    constexpr const char* cause = "the process called exit() in the middle of the job";
    job.abort(cause, nullptr);
    comm::say(fmt::format("error: rank {}: {}\n", job.rank(), cause));
    job.say_reported();
    std::fflush(stdout);
    ::_exit(exit_failure);
  }

  // Their types need no destruction: they are there as long as the process.
  inline static std::mutex mutex_;
  inline static RunningRank* newest_ = nullptr;
  inline static thread_local RunningRank* of_this_thread_ = nullptr;

  comm::Membership& job_;
  RunningRank* before_ = nullptr;
  RunningRank* outer_ = nullptr;  // a rank may launch a job of its own
};

}  // namespace

std::exception_ptr comm::run_rank(Membership& job, RankLog& log, const Body& body,
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

std::exception_ptr comm::outcome_of_process(Membership& job, const ProcessStart& how,
                                            const std::exception_ptr& thrown) {
  const JobFailure* const failure = job.failure();
  if (failure == nullptr) return how.log.line("ended"), nullptr;
  std::exception_ptr cause;
  if (failure->rank == job.rank()) {
    cause = exception_from_rank(failure->rank, first_cause(*failure, thrown));
    how.launched.report(cause);
    job.say_reported();
  } else {
    cause = std::make_exception_ptr(AbortedError(fmt::format("rank {}: {}", failure->rank, failure->cause)));
    if (!job.wait_for_report()) how.launched.report(cause);
  }
  how.log.line(fmt::format("failed: {}", text_of(cause)));
  return cause;
}

// ---- ranks that are threads ----

namespace {

class RankThreads {
 public:
  RankThreads(const LaunchOptions& options, const comm::Body& body)
      : room_(options.ranks.value_or(1), options.timeout),
        run_(options.backend == BackendChoice::nccl ? comm::nccl_threads(options, room_)
                                                    : comm::local_threads(options, room_)),
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

std::exception_ptr launch_threads(const LaunchOptions& options, const comm::Launched& launched) {
  RankThreads ranks(options, launched.body);
  ranks.run();
  const std::exception_ptr failure = ranks.failure();
  if (failure) launched.report(failure);
  return failure;
}

}  // namespace

// ---- launch() ----

void comm::require_launchable(const LaunchOptions& options) {
  validate(options);
  const bool on_devices = resolve(options.device) == DeviceKind::cuda;
  const Start start = start_of(options);
  require_startable(start, options, {.mpi = has_mpi(), .nccl = has_nccl(), .on_devices = on_devices});
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
  if (options.nccl_communicator != nullptr) return launch_over_own_nccl(options, launched);
  const Start start = start_of(options);
  switch (start.launcher) {
    case Launcher::mpi: return launch_mpi_process(start, options, launched);
    case Launcher::torchrun:
    case Launcher::slurm: return launch_process(start, options, launched);
    case Launcher::alone: break;
  }
  return launch_threads(options, launched);
}

void launch(const LaunchOptions& options, const std::function<void(World&)>& body) {
  const std::exception_ptr failure = comm::launch_ranks(options, {.body = body, .report = [](const auto&) {}});
  if (failure) std::rethrow_exception(failure);
}

// ---- run() ----

namespace {

void print(const std::exception_ptr& failure) { comm::say(fmt::format("error: {}\n", comm::text_of(failure))); }

// Whether `function` returned; what it throws becomes a line.
template <typename Function>
bool succeeds(Function&& function) {
  try {
    function();
    return true;
  } catch (...) {
    if (is_first_process()) print(std::current_exception());
    return false;
  }
}

// Whether this process finds the devices that the options ask for. What they are is every process's own matter, because
// hosts differ: each says itself what it lacks, or nobody would know whom the others wait for.
bool finds_devices(const LaunchOptions& options) {
  try {
    resolve(options.device);
    return true;
  } catch (const UnavailableError&) {
    const std::exception_ptr lack = std::current_exception();
    const Start start = how_started();
    print(start.launcher == Launcher::alone ? lack : comm::exception_from_rank(start.rank, lack));
    return false;
  }
}

// Null for launch options that are no good, of which a line tells.
std::optional<comm::LaunchArguments> parsed_arguments(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  std::optional<comm::LaunchArguments> parsed;
  succeeds([&] { parsed = comm::parse_launch_arguments(arguments); });
  return parsed;
}

void require_none(Arguments rest) {
  if (!rest.empty()) throw UsageError(fmt::format("unknown argument \"{}\"; --help lists the options", rest.front()));
}

bool asks_for_help(Arguments rest) { return std::find(rest.begin(), rest.end(), "--help") != rest.end(); }

// The exit code.
int print_help(const char* program, std::string_view about) {
  if (!is_first_process()) return exit_success;
  const std::string page = comm::help_page(program, about);
  if (std::fputs(page.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return exit_success;
  print(std::make_exception_ptr(DataError(fmt::format("standard output cannot be written: {}", std::strerror(errno)))));
  return exit_failure;
}

}  // namespace

int run(const LaunchOptions& options, const std::function<void(World&)>& body) {
  make_file_size_limit_an_error();
  bool good = false;
  const bool known = succeeds([&] {
    comm::validate(options);
    good = finds_devices(options);
    if (good) comm::require_launchable(options);
  });
  if (!known || !good) return exit_bad_options;
  std::exception_ptr failure;
  const bool launched = succeeds([&] { failure = comm::launch_ranks(options, {.body = body, .report = print}); });
  return launched && !failure ? exit_success : exit_failure;
}

int run(int argc, char** argv, const std::function<void(World&, Arguments)>& body) {
  const std::optional<comm::LaunchArguments> parsed = parsed_arguments(argc, argv);
  if (!parsed) return exit_bad_options;
  return run(parsed->options, [&](World& world) { body(world, parsed->rest); });
}

int run(int argc, char** argv, std::string_view about, const std::function<void(World&, Arguments)>& body) {
  const std::optional<comm::LaunchArguments> parsed = parsed_arguments(argc, argv);
  if (!parsed) return exit_bad_options;
  if (asks_for_help(parsed->rest)) return print_help(argv[0], about);
  return run(parsed->options, [&](World& world) { body(world, parsed->rest); });
}

int run(int argc, char** argv, std::string_view about, const std::function<void(World&)>& body) {
  const std::optional<comm::LaunchArguments> parsed = parsed_arguments(argc, argv);
  if (!parsed) return exit_bad_options;
  if (asks_for_help(parsed->rest)) return print_help(argv[0], about);
  return succeeds([&] { require_none(parsed->rest); }) ? run(parsed->options, body) : exit_bad_options;
}

int run(int argc, char** argv, const std::function<void(World&)>& body) { return run(argc, argv, "", body); }

}  // namespace tessera
