// The ranks among which a communicator's collectives run, and this rank's place among them.
#pragma once

#include <cstddef>
#include <numeric>
#include <optional>
#include <vector>

#include "tessera/comm/mesh.hpp"

namespace tessera::comm {

struct Members {
  std::vector<int> ranks;  // of the job, by place
  int place = 0;           // of this rank

  int rank() const { return ranks[static_cast<std::size_t>(place)]; }  // of the job
  int size() const { return static_cast<int>(ranks.size()); }
};

inline Members everybody(int rank, int ranks) {
  Members members{.ranks = std::vector<int>(static_cast<std::size_t>(ranks)), .place = rank};
  std::iota(members.ranks.begin(), members.ranks.end(), 0);
  return members;
}

// This rank's group; without one, all ranks of the job.
inline Members members_of(const std::optional<Group>& group, int rank, int ranks) {
  return group ? Members{.ranks = group->ranks(), .place = group->place()} : everybody(rank, ranks);
}

}  // namespace tessera::comm
