// One rank's part of each collective among threads, on the calling thread. On the CPU it blocks until all ranks have
// done theirs; on a CUDA device until all ranks have issued theirs to their queues, whose order does the rest.
#pragma once

#include <span>

#include "comm/local/local_group.hpp"
#include "comm/signature.hpp"
#include "tessera/comm/communicator.hpp"

namespace tessera::comm {

struct LocalCall {
  LocalGroup& group;
  int rank;
  device::CudaQueue* queue;  // null: memory of the CPU, moved by the calling thread
  Signature signature;
};

// Throws what LocalGroup::enter() throws; any other exception has aborted the job.
void run_collective(const LocalCall& call, std::span<const AllGather> segments);
void run_collective(const LocalCall& call, std::span<const ReduceScatter> segments);
void run_collective(const LocalCall& call, const AllReduce& operation);
void run_collective(const LocalCall& call, const Broadcast& operation);
void run_collective(const LocalCall& call, const Barrier& operation);

}  // namespace tessera::comm
