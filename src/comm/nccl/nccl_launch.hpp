// Ranks whose collectives are NCCL's: each has a CUDA device.
#pragma once

#include <memory>

#include "comm/transport.hpp"

namespace tessera::comm {

// Throws UnavailableError where NCCL is not to be had, or has fewer devices than ranks and cannot share them.
RunThread nccl_threads(const LaunchOptions& options, ControlRoom& room);
std::exception_ptr run_nccl_at_rendezvous(const ProcessStart& how);
std::exception_ptr run_nccl_introduced(Introduction& introduction, const ProcessStart& how);

// The ranks of the program's own communicator know each other by it.
std::unique_ptr<Introduction> introduce_over_nccl(void* communicator);

}  // namespace tessera::comm
