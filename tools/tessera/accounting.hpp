// The traffic of a plan, and the bytes of a number of parameters alone.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "json/json.hpp"
#include "tessera/plan/plan.hpp"
#include "tessera/plan/strategy.hpp"

namespace tools {

// These say what a rank sends in one step, added up from the plan's own collectives.

// The collectives of one kind and group in a step. A size is that of what is whole on every rank of the group, or comes
// from there, in the type in which it travels; each rank sends and receives (ranks − 1) / ranks of it.
struct CollectiveSizes {
  tessera::plan::OperationKind kind;
  tessera::AxisSet group;  // by group_name()
  std::size_t ranks = 1;   // of the group
  std::size_t every = 1;   // steps in which so many run: 1, or those from one outer step to the next
  std::size_t count = 0;
  tessera::Bytes smallest = {};
  tessera::Bytes median = {};  // the lower of two
  tessera::Bytes largest = {};
  tessera::Bytes moved = {};  // per rank and step, of outer steps the average
};

struct Traffic {
  tessera::Bytes moved = {};             // per rank and step
  tessera::Bytes moved_in_replica = {};  // of that, to ranks of its own replica only; 0 with one replica
  tessera::Bytes fetched = {};           // to the device's memory from the host's and from disk, per step
  tessera::Bytes evicted = {};           // and back
  tessera::Bytes from_disk = {};         // of that
  tessera::Bytes to_disk = {};
  std::vector<CollectiveSizes> kinds = {};
};

// A group's axes, and all of them where it has all ranks.
tessera::AxisSet group_name(const tessera::plan::Plan& plan, tessera::AxisSet group);

// "all-gather", "all-gather inside replicas", "reduce-scatter across replicas"
std::string name_of(const CollectiveSizes& collectives);

// Without collectives of a group of one rank: empty for a plan of one rank.
Traffic traffic(const tessera::plan::Plan& plan);

// Returns the strategies that differ on a mesh: flat_strategies with one replica, else all_strategies.
std::span<const tessera::Strategy> strategies_on(const tessera::plan::PlanOptions& options);

// `tessera plan --params N`: a number of parameters alone, in the ZeRO paper's accounting and in ours.
struct ParametersQuestion {
  double parameters;
  std::size_t ranks;
  std::size_t replicas;
  std::vector<tessera::plan::StateSpec> optimizer_states;
};

std::string text_of(const ParametersQuestion& question);
Json json_of(const ParametersQuestion& question);

}  // namespace tools
