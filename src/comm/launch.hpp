// Starting the ranks of a job, whatever they are: threads of this process, or this process as one of several.
#pragma once

#include <exception>
#include <functional>

#include "tessera/comm/run.hpp"

namespace tessera::comm {

// What a launch calls. Both are called on the thread that launches, `body` on others too where ranks are threads.
struct Launched {
  const std::function<void(World&)>& body;
  // Tells the user why the job failed. Of several processes only one calls it, and the others end after it has.
  const std::function<void(const std::exception_ptr&)>& report;
};

// The first cause when the job failed, else null. Throws UsageError or UnavailableError where no rank can start.
std::exception_ptr launch_ranks(const LaunchOptions& options, const Launched& launched);

// Throws as launch_ranks() does, before anything is started.
void require_launchable(const LaunchOptions& options);

}  // namespace tessera::comm
