// From a launcher's variables to a Start, and what a Start means for this build.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tessera/comm/run.hpp"
#include "tessera/comm/start.hpp"

namespace tessera::comm {

// The value of a variable, or null.
using Environment = std::function<const char*(const char* name)>;

// The whole number that is the value of variable `name`. Throws UsageError, one line naming both, when it is none from
// `least` to `most`.
int number_in(const char* name, std::string_view value, int least, int most);

// By the options where they bring the program's own communicator, else by the environment. Throws UsageError where the
// options contradict themselves, UnavailableError where this build cannot use what they bring.
Start start_of(const LaunchOptions& options);

Start detect_start(const Environment& environment, bool has_mpi);

// Throws UsageError when `options` ask for ranks that are threads though processes were started, UnavailableError when
// this build cannot be a rank of such a job.
struct Possible {
  bool mpi = false;         // this build has its MPI half
  bool nccl = false;        // and its NCCL half
  bool on_devices = false;  // what the options' device comes to here
};
void require_startable(const Start& start, const LaunchOptions& options, const Possible& possible);

// Throws UsageError when the options' backend and sums are none for ranks that were started so, on these devices.
void require_backend(const Start& start, const LaunchOptions& options, bool on_devices);

// "4 ranks on 2 hosts, processes of Open MPI's mpirun; here 2 ranks with 1 thread each, on the CPU"
struct StartLine {
  int ranks;
  int hosts;
  int ranks_here;
  int threads;
};
std::string start_line(const Start& start, const StartLine& facts);

}  // namespace tessera::comm
