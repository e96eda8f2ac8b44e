// Rank 0's end of the rendezvous: a thread that admits ranks, compares what they announce, hands blobs round, and tells
// all of the first failure. Every rank, also rank 0, is a client (rendezvous_control.hpp).
//
// Thread safety: all of it; the state is the thread's own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/control/ledger.hpp"
#include "comm/rendezvous/lobby.hpp"
#include "comm/rendezvous/wake.hpp"

namespace tessera::comm {

struct ServerOptions {
  Endpoint endpoint{};     // port 0: one that is free
  std::string token = "";  // empty: only where the endpoint is on the loopback interface
  int ranks = 1;
  std::chrono::milliseconds timeout{60'000};        // that late ranks have exceeded, for texts
  std::chrono::milliseconds handshake_time{5'000};  // for whoever connects to prove itself
};

class RendezvousServer {
 public:
  // Listens at the endpoint's addresses and nowhere else. Throws UsageError for a name without address, one that is
  // reachable from other hosts without a token, and one at which this process cannot listen.
  explicit RendezvousServer(const ServerOptions& options);
  // Sends what is left to say, for two seconds at most, and ends all connections.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  struct Member {
    std::optional<Connection> connection;
    bool came = false;
    bool left = false;
    bool gone = false;  // its connection has ended
  };
  struct Failure {
    int rank;
    Position position;  // of a verdict; else number is 0
    std::string cause;
  };
  using Place = std::pair<std::size_t, std::uint64_t>;

  void listen(const ServerOptions& options);
  void work() noexcept;
  void turn();
  void poll_once();
  std::string objection(int rank) const;
  void welcome(Lobby::Admitted admitted);
  void serve(int rank);
  void hear(int rank, const Frame& frame);
  void hear_announcement(int rank, std::string_view payload);
  void hear_lateness(int rank, std::string_view payload);
  void hear_leaving(int rank);
  void tell_agreement(std::size_t channel);
  void conclude(int rank, const std::optional<Verdict>& verdict);
  void fail(const Failure& failure);
  void tell_all(FrameKind kind, std::string_view payload);
  void flush_all(std::chrono::steady_clock::time_point deadline) noexcept;
  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }

  const ServerOptions options_;
  std::vector<Socket> listeners_;
  std::uint16_t port_ = 0;
  Lobby lobby_;
  Ledger ledger_;
  std::vector<Member> members_;  // by rank
  std::map<Place, std::vector<std::string>> blobs_;
  std::optional<Failure> failure_;
  std::size_t left_ = 0;
  std::vector<pollfd> polled_;
  Wake wake_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tessera::comm
