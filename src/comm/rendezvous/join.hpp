// From a rank's side: finding the server, and proving to each other that both hold the token.
#pragma once

#include <chrono>
#include <string>

#include "comm/rendezvous/connection.hpp"

namespace tessera::comm {

struct JoinOptions {
  Endpoint endpoint{};
  std::string token = "";
  int rank = 0;
  int ranks = 1;
  std::chrono::milliseconds start_timeout{60'000};  // for the server to be there
};

// Tries until the deadline: rank 0 may still be loading, and others may crowd the door. Blocks. Throws UsageError when
// the server refuses this rank, or does not hold the token itself; CommunicationError naming rank 0 after the deadline.
Connection join(const JoinOptions& options);

}  // namespace tessera::comm
