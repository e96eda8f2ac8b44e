// This process's part in MPI. The only user of mpi.h is its source.
#pragma once

#include <chrono>
#include <optional>

#include "comm/introduction.hpp"

namespace tessera::comm {

// MPI waits for the other processes without a deadline of its own, when it starts and when it ends: where one takes
// longer than this, the process says which and ends with an error.
struct MpiDeadlines {
  std::chrono::milliseconds start;
  std::chrono::milliseconds end;
};

// Who this process is, values of all ranks at once, and messages between hosts. Without a communicator they are those
// that an MPI launcher has started: MPI can start once in a process's life and end once, so there is one of it, started
// by the first call and ended with the process. With one of the program's own (MPI_Comm_c2f) they are its ranks: one of
// it for each communicator, until that is freed; the program has started MPI, and ends it. Collective. Throws
// UsageError where the communicator is none, or the program has started MPI without giving one, or with too few
// threads; UnavailableError when MPI cannot start, or in a build without MPI.
//
// Thread safety: all_gather() on the thread that launches, everything about messages on one other thread at a time; so
// MPI_THREAD_SERIALIZED is enough.
Introduction& introduce_over_mpi(std::optional<int> communicator, const MpiDeadlines& deadlines);

}  // namespace tessera::comm
