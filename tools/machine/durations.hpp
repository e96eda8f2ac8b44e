// How long the operations of a plan take on a machine: collectives by algorithm and level, windows by counting or as a
// trace of one rank measured them, everything else by the bytes that it reads and writes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "machine/machine.hpp"
#include "machine/work.hpp"
#include "tessera/plan/simulate.hpp"
#include "trace/trace_file.hpp"

namespace tools {

// A Profile is what a trace says of one rank's own work: medians over steps and ranks.
struct Profile {
  // The key is the unit, the pass, and the place among the micro-batch's windows of that kind.
  std::map<std::tuple<std::string, std::string, std::size_t>, double> windows;
  std::map<std::string, double>
      seconds_per_byte;  // by kind of operation: "optimize"; of collectives where one rank ran
  // This is the part of a step outside of windows and of calls into the runtime: loading, logging. The host spends it
  // before it launches a micro-batch's first operation, an equal part in each.
  double outside = 0;
  std::size_t ranks = 1;  // of the job that was traced
};
Profile profile_of(const TraceFile& trace);

// Returns the bytes as traces count them: for a collective the whole that its ranks make or sum together, else the
// declared ranges.
double traced_bytes(const tessera::plan::Operation& operation);

// A CollectiveUse is one collective that makes `bytes` whole on each rank of the group, or sums so many into shards.
struct CollectiveUse {
  tessera::AxisSet group;
  bool sums;
  double bytes;
};
// Throws UsageError where ranks need links between hosts that the machine has not.
double collective_seconds(const Machine& machine, const tessera::plan::Plan& plan, const CollectiveUse& use);

class DurationModel {
 public:
  // The plan must outlive it. Throws UsageError for what the machine has no rate for, and for a profile of other units.
  DurationModel(const tessera::plan::Plan& plan, const Machine& machine, const Workload& load,
                const std::optional<Profile>& profile);

  double seconds(const tessera::plan::Operation& operation) const;
  tessera::plan::Durations durations() const;
  tessera::plan::SimulationOptions simulation_options() const;

 private:
  void add_windows(const Workload& load, const std::optional<Profile>& profile);
  void add_outside(double seconds);
  double host_seconds(const tessera::plan::Operation& operation) const;
  double counted(const Work& work, tessera::DType type) const;
  const Curve& rate_of(const Product& product, tessera::DType type) const;
  double memory_seconds(const tessera::plan::Operation& operation) const;
  double memory_rate(double bytes, std::size_t ranks) const;
  double computing_time(std::size_t ranks) const;

  const tessera::plan::Plan& plan_;
  Machine machine_;
  std::map<const tessera::plan::Operation*, double> windows_;
  std::map<std::string, double> seconds_per_byte_;  // of a profile
  std::size_t profiled_ranks_ = 1;
  std::map<const tessera::plan::Operation*, double> outside_;  // of the host, before its launch
};

}  // namespace tools
