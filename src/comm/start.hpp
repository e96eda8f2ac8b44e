// From a launcher's variables to a Start, and what a Start means for this build.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "comm/hosts.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/start.hpp"

namespace tessera::comm {

// The value of a variable, or null.
using Environment = std::function<const char*(const char* name)>;

// The value of variable `name`, where it has one that is not empty.
std::optional<std::string> text_in(const Environment& environment, const char* name);
// The value as a whole number. Throws UsageError, one line naming both, when it is none from `least` to `most`.
std::optional<int> number_in(const Environment& environment, const char* name, int least,
                             int most = std::numeric_limits<int>::max());
std::optional<std::int64_t> large_number_in(const Environment& environment, const char* name, std::int64_t least,
                                            std::int64_t most);

// Makes any value fit to stand in a line of text, of so many of its characters.
std::string printable(std::string_view value, std::size_t most = 64);

// Chooses by the options where they bring the program's own communicator, else by the environment. Throws UsageError
// where the options contradict themselves, UnavailableError where this build cannot use what they bring.
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

// Throws UsageError when the environment says another rank of `said` than MPI, which knows it. Both are MPI's: its
// launcher has left the one, and its library makes the other of it.
void require_agreement(const Start& said, const Start& known);

// Whether ranks that were started so exchange data over NCCL.
bool uses_nccl(const Start& start, const LaunchOptions& options, bool on_devices);

// Throws UsageError when the options' backend and sums are none for ranks that were started so, on these devices.
void require_backend(const Start& start, const LaunchOptions& options, bool on_devices);

// "4 ranks on 2 hosts, processes of Open MPI's mpirun; here 2 ranks with 1 thread each, on the CPU"
std::string start_line(const Start& start, const Place& place, int threads);

}  // namespace tessera::comm
