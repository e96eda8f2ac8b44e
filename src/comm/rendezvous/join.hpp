// From a rank's side: where the ranks of a launch meet, finding the server there, and proving to each other that both
// hold the token.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "comm/rendezvous/wire.hpp"
#include "comm/start.hpp"

namespace tessera::comm {

// ---- the place, from the environment ----

struct MeetingPlace {
  Endpoint endpoint{};
  std::string token = "";  // empty: none
  int local_rank = 0;      // among the ranks of this host
};

// Host: MASTER_ADDR, else 127.0.0.1 for a SLURM step on one node, else the first of SLURM's nodes. Port: TESSERA_PORT,
// else MASTER_PORT (and one more where torchrun says that it listens there itself), else one that SLURM's job and step
// give. Token: TESSERA_TOKEN, of 16 characters or more. Throws UsageError naming the variable that is missing or makes
// no sense.
MeetingPlace meeting_place(const Environment& environment, const Start& start);

// "node01" of "node[01-04,7],other".
std::string first_of_nodes(const std::string& list);

// ---- joining ----

struct JoinOptions {
  Endpoint endpoint{};
  std::string token = "";
  int rank = 0;
  int ranks = 1;
  std::chrono::milliseconds start_timeout{60'000};  // for the server to be there
};

// Tries until the deadline: rank 0 may still be loading, its name may not be known yet, and others may crowd the door.
// Blocks. Throws UsageError when the server refuses this rank, or does not hold the token itself; CommunicationError
// naming rank 0 after the deadline.
using Resolver = std::function<std::vector<Address>(const Endpoint& endpoint, std::string& why)>;
Connection join(const JoinOptions& options, const Resolver& addresses_of = comm::addresses_of);

}  // namespace tessera::comm
