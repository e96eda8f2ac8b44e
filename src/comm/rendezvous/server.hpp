// Rank 0's end of the rendezvous: a thread that admits ranks, says in a ControlRoom what they announce, and tells them
// what comes of it. Every rank, also rank 0, is a client (rendezvous_control.hpp).
//
// Thread safety: all of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/pinned.hpp"
#include "comm/rendezvous/wire.hpp"

namespace tessera::comm {

struct ServerOptions {
  Endpoint endpoint{};     // port 0: one that is free
  std::string token = "";  // empty: only where the endpoint is on the loopback interface
  int ranks = 1;
  std::chrono::milliseconds timeout{60'000};        // that late ranks have exceeded, for texts
  std::chrono::milliseconds handshake_time{5'000};  // for whoever connects to prove itself
  std::string job = "";                             // as its launcher names it; ranks of another are refused
  // Throws UsageError while the name has no address, which is asked for as long as other ranks ask.
  std::function<std::vector<Address>(const Endpoint&)> addresses_of = comm::resolve;
};

class RendezvousServer : Pinned {
 public:
  // Listens at the endpoint's addresses and nowhere else. Throws UsageError for a name without address, one that is
  // reachable from other hosts without a token, and one at which this process cannot listen.
  explicit RendezvousServer(const ServerOptions& options);
  // Sends what is left to say, for two seconds at most, and ends all connections.
  ~RendezvousServer();

  std::uint16_t port() const;

 private:
  class Work;
  const std::unique_ptr<Work> work_;
};

}  // namespace tessera::comm
