// The launch of this process as one that an MPI launcher has started. On the CPU MPI introduces the ranks to each other
// and carries messages between hosts; with CUDA devices it only says where their rendezvous is.
#include <fmt/format.h>

#include <exception>
#include <memory>

#include "comm/launch.hpp"
#include "comm/mpi/mpi_process.hpp"
#include "comm/mpi/process_job.hpp"
#include "comm/rank_log.hpp"
#include "comm/rendezvous/join.hpp"
#include "comm/start.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
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

std::exception_ptr launch_over_mpi(MpiProcess& process, const ProcessStart& how, const Launched& launched) {
  ProcessJob job(process, how.options.timeout);
  return run_in_shared_memory(job, how, launched);
}

}  // namespace

bool has_mpi() { return true; }

std::exception_ptr launch_mpi_process(const Start& start, const LaunchOptions& options, const Launched& launched) {
  const MpiProcess::Deadlines deadlines{.start = start_timeout(options.timeout), .end = options.timeout};
  MpiProcess& process = options.mpi_communicator ? MpiProcess::over(*options.mpi_communicator, deadlines)
                                                 : MpiProcess::instance(deadlines);
  try {
    Start known = start;
    if (options.mpi_communicator) {
      known.rank = process.rank();
    } else {
      require_agreement(start, process);
    }
    known.ranks = process.size();
    RankLog log(options.log_dir, process.rank());
    const ProcessStart how{.start = known, .options = options, .log = log};
    const std::exception_ptr failure = resolve(options.device) == DeviceKind::cuda
                                           ? run_over_nccl(meet_over(process, known, options.timeout), how, launched)
                                           : launch_over_mpi(process, how, launched);
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
