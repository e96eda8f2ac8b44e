// One rank's part of each collective among processes, on the calling thread. Blocks until all ranks have done theirs.
#pragma once

#include <memory>
#include <span>

#include "comm/mpi/process_group.hpp"
#include "comm/signature.hpp"
#include "tessera/comm/communicator.hpp"

namespace tessera::comm {

struct ProcessCall {
  std::shared_ptr<ProcessGroup> group;
  Signature signature;
};

// Throws what ProcessGroup::enter() throws; any other exception has aborted the job.
void run_collective(const ProcessCall& call, std::span<const AllGather> segments);
void run_collective(const ProcessCall& call, std::span<const ReduceScatter> segments);
void run_collective(const ProcessCall& call, const AllReduce& operation);
void run_collective(const ProcessCall& call, const Broadcast& operation);
void run_collective(const ProcessCall& call, const Barrier& operation);

}  // namespace tessera::comm
