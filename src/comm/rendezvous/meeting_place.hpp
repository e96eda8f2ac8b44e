// Where the ranks of a launch meet, from the environment: host, port, token.
#pragma once

#include <string>

#include "comm/rendezvous/socket.hpp"
#include "comm/start.hpp"

namespace tessera::comm {

struct MeetingPlace {
  Endpoint endpoint{};
  std::string token = "";  // empty: none
  int local_rank = 0;      // among the ranks of this host
};

// Host: MASTER_ADDR, else the first of SLURM's nodes. Port: TESSERA_PORT, else MASTER_PORT (and one more where torchrun
// says that it listens there itself), else one that SLURM's job and step give. Token: TESSERA_TOKEN, of 16 characters
// or more. Throws UsageError naming the variable that is missing or makes no sense.
MeetingPlace meeting_place(const Environment& environment, const Start& start);

// "node01" of "node[01-04,7],other".
std::string first_of_nodes(const std::string& list);

}  // namespace tessera::comm
