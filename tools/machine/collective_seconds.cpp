// The formulas: a ring of n ranks takes n - 1 messages and moves (n - 1) / n of the bytes (Patarasuk and Yuan 2009).
#include "machine/collective_seconds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.hpp"

namespace tools {

namespace plan = tessera::plan;

namespace {

// How a group lies on hosts that ranks fill one after the other.
struct Spread {
  double ranks;       // of the group
  double hosts;       // on which it has ranks
  double on_host;     // of its ranks on one of them
  double neighbours;  // groups of the same kind that have ranks on the same host, this one included
};

// Ranks of all roles share hosts.
const plan::MeshShape& job_mesh(const plan::Plan& plan) { return plan.options.role ? *plan.options.mesh : plan.mesh; }

// Neighbours along the innermost of these axes stand so many ranks apart: as many as the axes inside it have.
std::size_t ranks_apart(const plan::MeshShape& mesh, tessera::AxisSet axes) {
  std::size_t inside = 1;
  bool reached = axes.empty();
  mesh.inwards_out([&](tessera::Axis axis) {
    reached = reached || axes.contains(axis);
    if (!reached) inside *= mesh.size(axis);
  });
  return inside;
}

Spread spread_of(const Machine& machine, const plan::Plan& plan, tessera::AxisSet group) {
  const plan::MeshShape& mesh = job_mesh(plan);
  const auto per_host = static_cast<double>(std::min(machine.ranks_per_host, mesh.size()));
  const auto ranks = static_cast<double>(mesh.size(group));
  const auto apart = static_cast<double>(ranks_apart(mesh, group));
  const double on_host = std::clamp(std::floor(per_host / apart), 1.0, ranks);
  return {ranks, std::ceil(ranks / on_host), on_host, std::max(1.0, std::floor(per_host / on_host))};
}

const Curve& rate_of(const Link& link, bool sums) {
  return sums && !link.summing.empty() ? link.summing : link.bandwidth;
}

double inside_host(const Machine& machine, double ranks, const CollectiveUse& use) {
  if (ranks == 1) return 0;
  const double moved = moved_share(machine.algorithm, ranks, use.sums) * use.bytes;
  const double messages = machine.algorithm == CollectiveAlgorithm::direct ? 1 : ranks - 1;
  return messages * machine.host.latency + moved / rate_of(machine.host, use.sums).at(use.bytes);
}

// Returns the seconds that the bytes entering each host take.
double between_hosts(const Machine& machine, const Spread& spread, double bytes, bool sums) {
  const double moved = (spread.hosts - 1) / spread.hosts * bytes * spread.neighbours;
  return moved / rate_of(*machine.network, sums).at(bytes);
}

// One ring through all hosts, cut into as many as a host has ways out: each byte enters each host once.
double ring(const Machine& machine, const Spread& spread, const CollectiveUse& use) {
  const double hops_inside = spread.ranks - spread.hosts;
  const double latency = spread.hosts * machine.network->latency + hops_inside * machine.host.latency;
  const double moved = (spread.ranks - 1) / spread.ranks * use.bytes;
  const double inside = spread.on_host > 1 ? moved / rate_of(machine.host, use.sums).at(use.bytes) : 0;
  const double outside = moved * spread.neighbours / rate_of(*machine.network, use.sums).at(use.bytes);
  return latency + std::max(inside, outside);
}

// Between ranks of equal place on all hosts, then inside each host; sums the other way round.
double two_level(const Machine& machine, const Spread& spread, const CollectiveUse& use) {
  const double across = (spread.hosts - 1) * machine.network->latency;
  return across + between_hosts(machine, spread, use.bytes, use.sums) + inside_host(machine, spread.on_host, use);
}

// Everybody reads each other's part: what comes from other hosts is not shared inside a host.
double direct(const Machine& machine, const Spread& spread, const CollectiveUse& use) {
  const double part = use.bytes / spread.ranks;
  const double far = part * (spread.ranks - spread.on_host) * spread.on_host * spread.neighbours;
  const double near = part * spread.on_host * moved_share(machine.algorithm, spread.on_host, use.sums);
  return machine.host.latency + machine.network->latency + near / rate_of(machine.host, use.sums).at(use.bytes) +
         far / rate_of(*machine.network, use.sums).at(use.bytes);
}

const Link& require_network(const Machine& machine, const plan::Plan& plan) {
  if (machine.network) return *machine.network;
  throw tessera::UsageError(fmt::format("{} has no network for {} ranks on hosts of {}: its file lacks \"network\"",
                                        machine.name, plan.job_ranks(), machine.ranks_per_host));
}

}  // namespace

double collective_seconds(const Machine& machine, const plan::Plan& plan, const CollectiveUse& use) {
  const Spread spread = spread_of(machine, plan, use.group);
  if (spread.hosts == 1) return inside_host(machine, spread.ranks, use);
  require_network(machine, plan);
  switch (machine.algorithm) {
    case CollectiveAlgorithm::direct: return direct(machine, spread, use);
    case CollectiveAlgorithm::ring: return ring(machine, spread, use);
    case CollectiveAlgorithm::two_level: return two_level(machine, spread, use);
  }
  throw tessera::InternalError("an algorithm without a formula");
}

// Where the first ranks of both roles are on one host, and the last ones, so are those in between as far as this knows.
// Ranks of a host that send to another one share its network.
double message_seconds(const Machine& machine, const plan::Plan& plan, std::size_t other_role, double bytes) {
  const plan::MeshShape& mesh = job_mesh(plan);
  const std::size_t in_a_row = ranks_apart(mesh, tessera::Axis::pipeline);  // of one role
  double longest = 0;
  for (plan::Coordinates place : {plan::Coordinates{}, mesh.last()}) {
    const auto rank_in = [&](std::size_t role) {
      place[static_cast<std::size_t>(tessera::Axis::pipeline)] = role;
      return mesh.rank_at(place);
    };
    const std::size_t here = rank_in(*plan.options.role), there = rank_in(other_role);
    const bool on_one_host = here / machine.ranks_per_host == there / machine.ranks_per_host;
    const Link& link = on_one_host ? machine.host : require_network(machine, plan);
    const auto at_once = static_cast<double>(on_one_host ? 1 : std::min(machine.ranks_per_host, in_a_row));
    longest = std::max(longest, link.latency + at_once * bytes / link.bandwidth.at(bytes));
  }
  return longest;
}

}  // namespace tools
