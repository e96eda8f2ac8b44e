// Starting the ranks of a job, whatever they are: threads of this process, or this process as one of several. What
// every launch does with a rank, and what each backend does for its own.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "comm/control/control_room.hpp"
#include "comm/world_backend.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/start.hpp"

namespace tessera::comm {

using Body = std::function<void(World&)>;

// A launch calls these. Both are called on the thread that launches, `body` on others too where ranks are threads.
struct Launched {
  const Body& body;
  // Tells the user why the job failed. Of several processes only one calls it, and the others end after it has.
  const std::function<void(const std::exception_ptr&)>& report;
};

// The first cause when the job failed, else null. Throws UsageError or UnavailableError where no rank can start.
std::exception_ptr launch_ranks(const LaunchOptions& options, const Launched& launched);

// Throws as launch_ranks() does, before anything is started.
void require_launchable(const LaunchOptions& options);

// ---- what every launch does with a rank ----

// Gives `body` a World over this backend, ends the World, and leaves the job. What was thrown, or null: the job has
// been aborted with it, and the log has it.
std::exception_ptr run_rank(Membership& job, RankLog& log, const Body& body,
                            const std::function<std::unique_ptr<World::Backend>()>& make_backend);

// A process that is one rank.
struct ProcessStart {
  const Start& start;
  const LaunchOptions& options;
  const Launched& launched;
  RankLog& log;
};
// Returns what `run` returns. An exception of it, before there was a job, is told to the user, and is the cause: the
// other processes know nothing of it.
std::exception_ptr launch_one(const Start& start, const LaunchOptions& options, const Launched& launched,
                              const std::function<std::exception_ptr(const ProcessStart&)>& run);

// `facts` for the user, at the start of a job: on rank 0's standard error, and in every log.
void say_start(const ProcessStart& how, const std::string& facts);

// The first failure of a job of processes decides its outcome: where it happened, this tells the user; elsewhere it
// returns after that, so that no launcher cuts it short. Returns the first cause, or null. Call it after run_rank().
std::exception_ptr outcome_of_process(Membership& job, const ProcessStart& how, const std::exception_ptr& thrown);

// ---- ranks that are threads ----

// A RunThread is each rank's part on its own thread, as run_rank(); it outlives them. Room and options outlive it. nccl
// throws UnavailableError where NCCL is not to be had, or has fewer devices than ranks and cannot share them.
using RunThread = std::function<std::exception_ptr(ThreadControl& control, RankLog& log, const Body& body)>;
RunThread local_threads(const LaunchOptions& options, ControlRoom& room);
RunThread nccl_threads(const LaunchOptions& options, ControlRoom& room);

// ---- this process as a rank ----

// Does what launch_ranks() does, for a process that torchrun or SLURM has started; the ranks meet over TCP. With a CUDA
// device their collectives are NCCL's. On the CPU all are on one host, and share memory.
std::exception_ptr launch_process(const Start& start, const LaunchOptions& options, const Launched& launched);

// Whether this build has its MPI half.
bool has_mpi();
// Does what launch_ranks() does, for a process that an MPI launcher has started, with or without a CUDA device. Throws
// UnavailableError in a build without MPI.
std::exception_ptr launch_mpi_process(const Start& start, const LaunchOptions& options, const Launched& launched);

// Does what launch_ranks() does, for a rank of the NCCL communicator that the options bring.
std::exception_ptr launch_over_own_nccl(const LaunchOptions& options, const Launched& launched);

// Runs the ranks' job from its beginning to its end, once they know where they meet, or have met. Returns the first
// cause, or null.
struct MeetingPoint;
class ProcessJob;
std::exception_ptr run_over_nccl(const MeetingPoint& point, const ProcessStart& how);
std::unique_ptr<World::Backend> make_process_backend(ProcessJob& job, int threads, RankLog& log);
std::exception_ptr run_in_shared_memory(ProcessJob& job, const ProcessStart& how);

}  // namespace tessera::comm
