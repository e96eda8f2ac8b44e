// Ranks that are processes with a CUDA device each, started by torchrun- or SLURM-style variables: they meet over TCP,
// and their collectives are NCCL's.
#pragma once

#include <exception>

#include "comm/launch.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/start.hpp"

namespace tessera::comm {

// As launch_ranks(), for a process that such a launcher has started.
std::exception_ptr launch_nccl_process(const Start& start, const LaunchOptions& options, const Launched& launched);

}  // namespace tessera::comm
