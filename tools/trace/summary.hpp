// A summary of a trace says how much communication computation hid, who waited longest and for whom, and where time
// went. Times are microseconds per step, unless said otherwise.
#pragma once

#include <string>
#include <vector>

#include "trace/trace_file.hpp"

namespace tools {

struct RankFigures {
  std::size_t rank;
  double step;           // from the beginning of its first operation to the end of its last one
  double computing;      // some stream runs a window or an operation that is no collective
  double communicating;  // some stream runs a collective, which includes waiting for the peers
  double hidden;         // of communicating: while computing
  double waited;         // the compute stream stood in waits
  double bubble;         // of passes, from the first window of any rank to the last's end: its compute stream is idle
  double exposed() const { return communicating - hidden; }
};

struct KindFigures {
  std::string kind;
  bool communication;
  double count;  // per rank and step, like the others
  double time;
  double bytes;
};

// Per rank and step. What several units share counts for the first.
struct UnitFigures {
  std::string unit;  // "-": what belongs to none
  double forward = 0;
  double recompute = 0;
  double backward = 0;
  double other_computing = 0;
  double communicating = 0;
  double waited = 0;  // the compute stream, before this unit's operations
};

// HostFigures are of one unit's windows: medians over ranks, steps and micro-batches of what the host spent in the
// runtime to open and close one, without what it ran itself or waited for. unit "-", pass "update": the update.
struct HostFigures {
  std::string unit;
  std::string pass;
  double time;  // of one window
};

struct Summary {
  std::vector<RankFigures> ranks;
  std::vector<Slice> waits;  // the longest first
  std::vector<KindFigures> kinds;
  std::vector<UnitFigures> units;  // in the order in which they first appear
  std::vector<HostFigures> host;
};

Summary summarize(const TraceFile& trace, std::size_t longest_waits);

// Returns the overlap of all ranks together, between 0 and 1; 1 when nothing was communicated.
double overlap(const Summary& summary);

double median(std::vector<double> values);  // of at least one

}  // namespace tools
