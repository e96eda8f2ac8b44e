// This process's part in MPI. The only user of mpi.h is its source.
#pragma once

#include <chrono>

#include "comm/introduction.hpp"

namespace tessera::comm {

// MPI waits for the other processes without a deadline of its own, when it starts and when it ends: where one takes
// longer than this, the process says which and ends with an error.
struct MpiDeadlines {
  std::chrono::milliseconds start;
  std::chrono::milliseconds end;
};

// Who this process is, values of all ranks at once, and messages between hosts. MPI can start once in a process's life
// and end once, so there is one of it: started by the first call, ended with the process. Throws UnavailableError when
// MPI cannot start.
//
// Thread safety: all_gather() on the thread that launches, everything about messages on one other thread at a time; so
// MPI_THREAD_SERIALIZED is enough.
Introduction& introduce_over_mpi(const MpiDeadlines& deadlines);

}  // namespace tessera::comm
