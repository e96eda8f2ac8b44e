// How long the operations of a plan take on a machine: windows by counting or as a trace of one rank measured them,
// collectives by their own formulas, everything else by the bytes that it reads and writes.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "machine/machine.hpp"
#include "machine/profile.hpp"
#include "machine/work.hpp"
#include "tessera/plan/simulate.hpp"

namespace tools {

// Returns the bytes as traces count them: for a collective the whole that its ranks make or sum together, else the
// declared ranges.
double traced_bytes(const tessera::plan::Operation& operation);

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
  double product_beside(const tessera::plan::Operation& collective, TokenShape shape) const;
  double counted(const Work& work, tessera::DType type) const;
  const Curve& rate_of(const Product& product, tessera::DType type) const;
  double memory_seconds(const tessera::plan::Operation& operation) const;
  double gathered_bytes(const tessera::plan::Operation& operation) const;
  double transfer_seconds(const tessera::plan::Operation& operation) const;
  double host_update_seconds(const tessera::plan::Operation& operation) const;
  double transform_seconds(const tessera::plan::Operation& operation) const;
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
