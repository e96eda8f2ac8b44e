// How long a collective of a plan takes on a machine: an all-gather, a sum that is scattered, or both, which is an
// all-reduce; by the machine's algorithm, inside a host and between hosts.
#pragma once

#include "machine/machine.hpp"
#include "tessera/plan/plan.hpp"

namespace tools {

// A CollectiveUse is one collective that makes `bytes` whole on each rank of the group, or sums so many into shards.
struct CollectiveUse {
  tessera::AxisSet group;
  bool sums;
  double bytes;
};
// Throws UsageError where ranks need links between hosts that the machine has not.
double collective_seconds(const Machine& machine, const tessera::plan::Plan& plan, const CollectiveUse& use);

// A message of so many bytes from each rank of the plan's role to the one at its place in another, and beside it one of
// the same size back. Throws as above.
double message_seconds(const Machine& machine, const tessera::plan::Plan& plan, std::size_t other_role, double bytes);

}  // namespace tools
