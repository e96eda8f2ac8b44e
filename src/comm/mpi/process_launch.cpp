// Ranks that are processes on the CPU, whoever has started them; and the start of those that torchrun or SLURM has
// started on one host: they meet at the rendezvous, which ends when they share memory.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "comm/launch.hpp"
#include "comm/mpi/process_backend.hpp"
#include "comm/mpi/process_job.hpp"
#include "comm/rank_log.hpp"
#include "comm/rendezvous/meet.hpp"
#include "comm/rendezvous/rendezvous_control.hpp"
#include "comm/start.hpp"

namespace tessera::comm {
namespace {

void say_start(const ProcessStart& how, const ProcessJob& job, const StartLine& facts) {
  const std::string text = start_line(how.start, facts);
  how.log.line(fmt::format("rank {} begins in process {}: {}", job.rank(), ::getpid(), text));
  if (job.rank() == 0) fmt::print(stderr, "tessera: {}\n", text);
}

// The ranks meet at the rendezvous, which ends when they share memory.
std::exception_ptr run_on_cpu(MeetingPoint point, const ProcessStart& how, const Launched& launched) {
  std::unique_ptr<ProcessJob> job;
  {
    RendezvousControl control(join_options(point.place, how.start, how.options.timeout),
                              start_timeout(how.options.timeout));
    std::exception_ptr thrown;
    try {
      RendezvousIntroduction introduction(control);
      job = std::make_unique<ProcessJob>(introduction, how.options.timeout);
    } catch (...) {
      thrown = std::current_exception();
      control.abort(text_of(thrown), thrown);
    }
    control.leave();
    if (control.failure() != nullptr) return outcome_of_process(control, how.log, thrown, launched);
  }
  point.server.reset();
  return run_in_shared_memory(*job, how, launched);
}

}  // namespace

std::exception_ptr run_in_shared_memory(ProcessJob& job, const ProcessStart& how, const Launched& launched) {
  const QuietOutput quiet(how.options, job.rank());
  const StartLine facts{.ranks = job.place().ranks,
                        .hosts = job.place().hosts,
                        .ranks_here = static_cast<int>(job.place().here.size()),
                        .threads = how.options.threads.value_or(job.cores_per_rank())};
  say_start(how, job, facts);
  const std::exception_ptr thrown = run_rank(
      job, how.log, launched.body, [&] { return std::make_unique<ProcessBackend>(job, facts.threads, how.log); });
  return outcome_of_process(job, how.log, thrown, launched);
}

std::exception_ptr launch_process(const Start& start, const LaunchOptions& options, const Launched& launched) {
  try {
    RankLog log(options.log_dir, start.rank);
    const ProcessStart how{.start = start, .options = options, .log = log};
    const bool on_device = resolve(options.device) == DeviceKind::cuda;
    MeetingPoint point = meeting_point([](const char* name) { return std::getenv(name); }, start,
                                       on_device ? options.timeout : start_timeout(options.timeout));
    return on_device ? run_over_nccl(point, how, launched) : run_on_cpu(std::move(point), how, launched);
  } catch (...) {  // before there was a job: the other processes say so themselves
    const std::exception_ptr failure = exception_from_rank(start.rank, std::current_exception());
    launched.report(failure);
    return failure;
  }
}

}  // namespace tessera::comm
