// Starting the ranks of a job, whatever they are: threads of this process, or this process as one of several.
#pragma once

#include <exception>

#include "comm/rank_run.hpp"
#include "tessera/comm/run.hpp"

namespace tessera::comm {

// The first cause when the job failed, else null. Throws UsageError or UnavailableError where no rank can start.
std::exception_ptr launch_ranks(const LaunchOptions& options, const Launched& launched);

// Throws as launch_ranks() does, before anything is started.
void require_launchable(const LaunchOptions& options);

}  // namespace tessera::comm
