// What a rank says to the server of a communicator that is being made, beside its signature: the communicator's name
// and the ranks of its own group. The server makes channels of it, so it believes nothing that does not fit together.
#pragma once

#include <string>
#include <vector>

#include "comm/rendezvous/wire.hpp"

namespace tessera::comm {

struct Opening {
  std::string name = "";
  std::vector<int> ranks = {};  // of this rank's group, by place; empty: all ranks of the job
};

void append_opening(std::string& out, const Opening& opening);

// Of this rank, one of so many. Throws DataError for ranks that are none of the job's, for one that stands there twice,
// and for a group without the rank that says it.
struct Speaker {
  int rank;
  int ranks;
};
Opening read_opening(FieldReader& reader, const Speaker& speaker);

// What every rank has said, by rank, as groups in the order of their lowest ranks; one that is empty where all ranks of
// the job are one. Throws DataError unless each rank is in one group, whose ranks have all said the same, and groups
// are equally large.
std::vector<std::vector<int>> partition_of(const std::vector<Opening>& openings);

}  // namespace tessera::comm
