// The mpi backend's World, and the launch of this process as one of several.
#include "comm/mpi/process_backend.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "comm/launch.hpp"
#include "comm/start.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

ProcessBackend::ProcessBackend(ProcessJob& job, int threads, RankLog& log)
    : Backend({.name = "mpi",
               .rank = job.rank(),
               .size = job.place().ranks,
               .device = Device::cpu(),
               .threads = threads,
               .timeout = job.timeout()},
              job, log),
      job_(job),
      creation_(job, {.index = 0, .name = "creation", .members = everybody(job.rank(), job.place().ranks)},
                job.take_creation_memory()) {}

// Making a communicator is itself a collective, of all ranks, with its name and partition as label: ranks that disagree
// about it, or do not come, get the same errors as in any other.
std::unique_ptr<Communicator> ProcessBackend::make_communicator(std::string name, const CommunicatorUse& use) {
  ProcessGroup::Identity identity{.index = ++communicators_made_,
                                  .name = communicator_name(name, use.group),
                                  .members = members_of(use.group, facts().rank, facts().size)};
  SharedMemory memory = shared_with_host(creation_label(name, use.group), identity.members);
  return make_process_communicator(std::make_shared<ProcessGroup>(job_, std::move(identity), std::move(memory)));
}

// Of a group's ranks on a host the lowest makes the memory, the others open it before anybody goes on.
SharedMemory ProcessBackend::shared_with_host(const std::string& label, const Members& members) {
  const Bytes size = shared::GroupLayout(members.size()).size();
  const std::vector<int>& here = job_.place().here;
  const auto is_member = [&](int rank) { return std::count(members.ranks.begin(), members.ranks.end(), rank) > 0; };
  const int maker = *std::find_if(here.begin(), here.end(), is_member);
  SharedMemory memory;
  if (maker == job_.rank()) memory = SharedMemory::make("tessera-communicator", size);
  creation_.enter(signature_of_creation(label), nullptr, memory.file().descriptor);
  try {
    if (maker != job_.rank()) {
      const int descriptor = creation_.creation_descriptor(maker);
      memory = SharedMemory::open({.owner = job_.process_of(maker), .descriptor = descriptor, .size = size});
    }
  } catch (...) {
    creation_.fail(std::current_exception());
    throw;
  }
  creation_.finish();
  return memory;
}

// ---- the launch ----

namespace {

// Both are MPI's: what the launcher has left in the environment, and what the library makes of it.
void require_agreement(const Start& start, const MpiProcess& process) {
  if (start.rank == process.rank() && (start.ranks == 0 || start.ranks == process.size())) return;
  throw UsageError(fmt::format(
      "the environment says that {} has started this process as rank {} of {}, but MPI says that it is rank "
      "{} of {}: start it with the mpirun of the MPI that it is built with, in an environment without "
      "another launcher's variables",
      start.by, start.rank, start.ranks == 0 ? "some" : fmt::to_string(start.ranks), process.rank(), process.size()));
}

void say_start(const Start& start, const ProcessJob& job, const StartLine& facts, RankLog& log) {
  const std::string text = start_line(start, facts);
  log.line(fmt::format("rank {} begins in process {}: {}", job.place().rank, ::getpid(), text));
  if (job.place().rank == 0) fmt::print(stderr, "tessera: {}\n", text);
}

}  // namespace

bool has_mpi() { return true; }

std::exception_ptr launch_mpi_process(const Start& start, const LaunchOptions& options, const Launched& launched) {
  MpiProcess& process = MpiProcess::instance(
      {.start = std::max(options.timeout, ProcessJob::least_start_timeout), .end = options.timeout});
  try {
    require_agreement(start, process);
    RankLog log(options.log_dir, process.rank());
    ProcessJob job(process, options.timeout);
    const QuietOutput quiet(options, process.rank());
    const StartLine facts{.ranks = process.size(),
                          .hosts = job.place().hosts,
                          .ranks_here = static_cast<int>(job.place().here.size()),
                          .threads = options.threads.value_or(job.cores_per_rank())};
    say_start(start, job, facts, log);
    const std::exception_ptr thrown =
        run_rank(job, log, launched.body, [&] { return std::make_unique<ProcessBackend>(job, facts.threads, log); });
    const std::exception_ptr failure = outcome_of_process(job, log, thrown, launched);
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
