// The file of a trace, in Chrome's JSON trace format ("Trace Event Format", Google; Perfetto reads it): one event a
// line. What `tessera trace summary` relies on stands in the events' "args", which docs/guide.md describes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shard/trace_recorder.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/shard/trace.hpp"

namespace tessera {

struct RankTimes {
  std::size_t rank;
  std::vector<std::int64_t> nanoseconds;  // TraceRecorder::times(), on one clock for all ranks
};

// ---- one clock for all ranks ----
// A steady clock belongs to a host and counts from its start, so ranks of one host agree, and ranks of others are
// shifted to rank 0's clock by when they leave barriers.

// A departure is when a rank left a barrier, on its own clock; they stand by barrier and rank.
using Departures = std::vector<std::vector<std::int64_t>>;

// Returns what to take from each rank's clock: the median over barriers of how much later it left than rank 0; for a
// host's ranks, which share a clock, the median of theirs. `hosts`: by rank, equal numbers for one host.
std::vector<std::int64_t> clock_offsets(const Departures& departures, const std::vector<std::size_t>& hosts);

// Shifts the times of ranks on other hosts than rank 0's; says what the times rest on. Collective.
std::string align_clocks(World& world, std::vector<RankTimes>& ranks);

// ---- the file ----

struct TraceContent {
  const TraceRecorder& recorder;  // what stamps mean
  bool compute_is_immediate;      // the compute stream's work runs where the host submits it
  std::string clocks;             // what the ranks' times rest on, for people
  std::vector<RankTimes> ranks = {};
};

// Returns what one operation moves: for a collective the whole that its ranks send or receive together, for everything
// else the bytes of all ranges that it declares to read or write.
Bytes operation_bytes(const plan::Operation& operation);

std::string trace_json(const TraceContent& content);

}  // namespace tessera
