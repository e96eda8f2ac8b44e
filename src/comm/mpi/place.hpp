// Where the ranks of a job are: which of them share a host, and with it memory, with this one.
#pragma once

#include <string>
#include <vector>

namespace tessera::comm {

struct Place {
  int rank = 0;
  int ranks = 1;
  int hosts = 1;
  std::vector<int> host_of;  // by rank; hosts count from 0 in the order of their lowest rank
  std::vector<int> here;     // the ranks of this host, ascending

  bool is_here(int other) const { return host_of[static_cast<std::size_t>(other)] == host(); }
  int host() const { return host_of[static_cast<std::size_t>(rank)]; }
  int leader() const { return here.front(); }
  bool leads() const { return leader() == rank; }
};

// What processes have in common exactly when they can share memory: the host's name, its boot, and the processes that
// they see (containers see their own).
std::string host_key();

// From every rank's key, in rank order.
Place place_of(int rank, const std::vector<std::string>& host_keys);

}  // namespace tessera::comm
