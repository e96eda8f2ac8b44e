// On which hosts the ranks of a job are: which of them share a host, and with it memory, and what meshes lose by it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/introduction.hpp"
#include "tessera/comm/mesh.hpp"

namespace tessera::comm {

struct Place {
  int rank = 0;
  int ranks = 1;
  int hosts = 1;
  std::vector<int> host_of{};             // by rank; hosts count from 0 in the order of their lowest rank
  std::vector<std::string> host_names{};  // by host
  std::vector<int> here{};                // the ranks of this host, ascending

  bool is_here(int other) const { return host_of[static_cast<std::size_t>(other)] == host(); }
  int host() const { return host_of[static_cast<std::size_t>(rank)]; }
  int leader() const { return here.front(); }
  bool leads() const { return leader() == rank; }
};

// Processes have the same key exactly when they can share memory: it is the host's name, its boot, and the processes
// that they see (containers see their own).
std::string host_key();

// From every rank's key, in rank order.
Place place_of(int rank, const std::vector<std::string>& host_keys);
// Finds this process's place. Collective; throws when the others do not come in time.
Place find_place(Introduction& introduction, std::chrono::milliseconds timeout);

// Cores that each rank of this host may call its own, at least 1. Collective, as find_place().
int cores_per_rank(Introduction& introduction, const Place& place, std::chrono::milliseconds timeout);

// A warning where groups of the mesh's innermost axis are on several hosts only because the launcher has interleaved
// the hosts: with ranks numbered host by host fewer would be. Else empty, also for a place that says nothing of hosts.
std::string needless_crossing(const Mesh& mesh, const Place& place);

}  // namespace tessera::comm
