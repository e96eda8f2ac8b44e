// A communicator has for one of its ranks: the ranks among which its collectives run, this rank's place among them, its
// channel, and its name.
#pragma once

#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "comm/signature.hpp"
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

struct Identity {
  std::size_t channel = 0;  // of this rank's group; 0 is the one in which the others are made
  std::string name = "";
  Members members{};
};

inline Opening opening_of(const std::string& name, const std::optional<Group>& group, int rank) {
  const auto number = [](int value) { return static_cast<std::uint32_t>(value); };
  if (!group) return {.name = name, .place = number(rank)};
  return {.name = name,
          .groups = number(group->count()),
          .group = number(group->index_of(rank)),
          .place = number(group->place_of(rank))};
}

// A rank's channels count from 1 as they are made, those of a partition in the order of its groups.
class ChannelCount {
 public:
  // Takes the identity of the communicator `name`, over the groups of a partition, or over all ranks.
  Identity take(const std::string& name, const std::optional<Group>& group, int rank, int ranks) {
    const std::size_t first = opened_ + 1;
    opened_ += group ? static_cast<std::size_t>(group->count()) : 1;
    return {.channel = first + (group ? static_cast<std::size_t>(group->index_of(rank)) : 0),
            .name = communicator_name(name, group),
            .members = members_of(group, rank, ranks)};
  }

 private:
  std::size_t opened_ = 0;
};

}  // namespace tessera::comm
