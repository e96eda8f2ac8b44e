// What messages to and from the server are about: positions, and communicators that are being made. The server makes
// channels of what it is told, so it believes nothing that does not fit together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/control/ledger.hpp"
#include "comm/rendezvous/wire.hpp"

namespace tessera::comm {

void append_position(std::string& out, const Position& position);
Position read_position(FieldReader& reader);

// What a rank says of a communicator that is being made, beside its signature: which rank it is there.
struct Opening {
  std::string name = "";     // of the communicator
  std::uint32_t groups = 1;  // of equal size, into which the job's ranks are parted
  std::uint32_t group = 0;   // this rank's; they count in the order of their lowest ranks
  std::uint32_t place = 0;   // and its place there
};
void append_opening(std::string& out, const Opening& opening);
// Throws DataError for what is no place among so many ranks.
Opening read_opening(FieldReader& reader, int ranks);

// What every rank has said, by rank, as the ranks of each group by place. Throws DataError unless all mean the same
// number of groups, and each has a place of its own.
std::vector<std::vector<int>> partition_of(const std::vector<Opening>& openings);

}  // namespace tessera::comm
