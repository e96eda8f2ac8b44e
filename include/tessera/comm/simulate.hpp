// One real rank of an imagined job: it runs alone, with the layout, the plan and the memory that rank `rank` of `ranks`
// would have. What one wants to know of such a rank is its bytes and its schedule; its values are not a training's.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "tessera/comm/world.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// A collective takes latency + bytes / bytes_per_second on its stream, where bytes are what one rank sends in a ring of
// N ranks (Patarasuk & Yuan 2009): (N - 1)/N of the whole buffer for all-gather and reduce-scatter, twice that for
// all-reduce, the whole buffer for a pipelined broadcast, none for a barrier. With one rank it takes no time at all.
struct CollectiveTime {
  std::chrono::nanoseconds latency{0};  // of a whole collective, whatever the number of its segments
  double bytes_per_second = 0.0;        // of one rank's link; 0: bytes take no time
};

struct SimulateOptions {
  int ranks = 1;  // of the imagined job, 1 to 2^20
  int rank = 0;   // the one that is real
  CollectiveTime collectives{};
  std::chrono::milliseconds timeout{60'000};  // what World::timeout() says; nobody is waited for
  std::optional<int> threads = std::nullopt;  // host threads of the rank; default: all cores
};

// Calls body once, on this thread, with a World of the backend "modelled". Throws what the body threw, its text
// beginning with "rank R: " unless there is one rank; UsageError for options out of range. Blocks.
//
// Communicators keep the contract (communicator.hpp): they check their arguments, enqueue, take their time, and write
// where those of a real rank write; but nothing moves. The other ranks contribute zeros: of a gather all parts but this
// rank's become zero, of a sum over ranks this rank's own values are left. A broadcast keeps what is there, as if the
// root had the same. So no value appears that is not finite unless this rank made it.
// The World's host conveniences answer as if every rank had said what this one says.
void simulate(const SimulateOptions& options, const std::function<void(World&)>& body);

}  // namespace tessera

#pragma GCC visibility pop
