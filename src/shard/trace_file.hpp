// The file of a trace, in Chrome's JSON trace format ("Trace Event Format", Google; Perfetto reads it): one event a
// line. What `tessera trace summary` relies on stands in the events' "args", which docs/guide.md describes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shard/trace_layout.hpp"
#include "tessera/shard/trace.hpp"

namespace tessera {

struct RankTimes {
  std::size_t rank;
  std::vector<std::int64_t> nanoseconds;  // TraceRecorder::times(), on one clock for all ranks
};

struct TraceContent {
  const plan::Plan& plan;
  const TraceLayout& layout;
  TraceSteps steps;
  std::vector<RankTimes> ranks;
  bool compute_is_immediate;  // the compute stream's work runs where the host submits it
  std::string clocks;         // what the ranks' times rest on, for people
};

// What one operation moves: of a collective the whole that its ranks send or receive together, of everything else the
// bytes of all ranges that it declares to read or write.
Bytes operation_bytes(const plan::Operation& operation);

std::string trace_json(const TraceContent& content);

}  // namespace tessera
