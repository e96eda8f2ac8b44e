// How the ranks of a job exchange data. launch() brings ranks together in one of three ways, and each transport says
// how its ranks go on from there, until the job ends. No transport knows another.
#pragma once

#include <exception>
#include <functional>

#include "comm/control/control_room.hpp"
#include "comm/introduction.hpp"
#include "comm/rank_run.hpp"

namespace tessera::comm {

// Each rank that is a thread calls this on that thread, as run_rank(). Room and options outlive it.
using RunThread = std::function<std::exception_ptr(ThreadControl& control, RankLog& log, const Body& body)>;

struct Transport {
  // For ranks that are threads of this process.
  RunThread (*threads)(const LaunchOptions& options, ControlRoom& room);
  // For a process whose environment says where the ranks meet over TCP. The first cause of a failure, or null.
  std::exception_ptr (*at_rendezvous)(const ProcessStart& how);
  // The same, for a process whose ranks know each other already.
  std::exception_ptr (*introduced)(Introduction& introduction, const ProcessStart& how);
};

}  // namespace tessera::comm
