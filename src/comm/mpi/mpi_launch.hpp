// Ranks that are processes, started by an MPI launcher. Without MPI in the build: mpi_stub.cpp.
#pragma once

#include <exception>
#include <functional>

#include "comm/launch.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/start.hpp"

namespace tessera::comm {

// Whether this build has its MPI half.
bool has_mpi();

// As launch_ranks(), for a process that an MPI launcher has started. Throws UnavailableError in a build without MPI.
std::exception_ptr launch_process(const Start& start, const LaunchOptions& options, const Launched& launched);

}  // namespace tessera::comm
