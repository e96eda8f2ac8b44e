// Rank 0's end of the rendezvous: a lobby, in which connections become ranks, and the server, which compares what they
// announce, hands blobs round, and tells all of the first failure.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/control/ledger.hpp"
#include "comm/rendezvous/handshake.hpp"
#include "comm/rendezvous/messages.hpp"
#include "comm/rendezvous/wire.hpp"

namespace tessera::comm {

// ---- the lobby ----
//
// Connections that are not a rank's yet. Whoever connects gets a place for a few seconds, in which it has to prove that
// it holds the token; there are few places, and the oldest one is given to whoever comes next when all are taken. So a
// flood neither fills the memory nor keeps a rank out, which tries again when its place was taken.
// Thread safety: one thread.

class Lobby {
 public:
  struct Rules {
    std::string token;
    int ranks;
    std::chrono::milliseconds most_time{5'000};
    std::size_t places = 64;
    // Why this rank cannot be admitted, or empty.
    std::function<std::string(int rank)> objection;
  };
  explicit Lobby(Rules rules) : rules_(std::move(rules)) {}

  // Takes whoever waits at the listener.
  void take_from(const Socket& listener);

  struct Admitted {
    int rank;
    Connection connection;
  };
  // Who has proved itself since; ends connections whose time is over.
  std::vector<Admitted> admit();

  void add_to(std::vector<pollfd>& polled) const;
  // "; 3 connections were refused, the last from …: …", or empty.
  std::string refusals() const;

 private:
  struct Guest {
    Connection connection;
    std::string from;
    Nonce nonce;
    std::chrono::steady_clock::time_point deadline;
    bool refused = false;  // stays until it has been told why
  };
  enum class Progress { waits, admitted, gone };

  Progress advance(Guest& guest, std::optional<int>& rank);
  Progress hear(Guest& guest, std::string_view payload, std::optional<int>& rank);
  Progress refuse(Guest& guest, const std::string& why);

  Rules rules_;
  std::list<Guest> guests_;  // the oldest first
  std::size_t refused_ = 0;
  std::string last_refusal_;
};

// ---- the server ----
//
// Rank 0's end of the rendezvous: a thread that admits ranks, compares what they announce, hands blobs round, and tells
// all of the first failure. Every rank, also rank 0, is a client (rendezvous_control.hpp).
//
// Thread safety: all of it; the state is the thread's own.

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
    std::chrono::steady_clock::time_point alive{};  // its last sign of life
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
  void open_channels();
  void tell_agreement(std::size_t channel);
  void conclude(int rank, const std::optional<Verdict>& verdict);
  void fail(int rank, std::string_view cause, const Position& verdict = {});
  void tell(Member& each, FrameKind kind, std::string_view payload);
  void tell_all(FrameKind kind, std::string_view payload);
  void flush_all(std::chrono::steady_clock::time_point deadline) noexcept;
  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }

  const ServerOptions options_;
  std::vector<Socket> listeners_;
  std::uint16_t port_ = 0;
  Lobby lobby_;
  Ledger ledger_;
  std::vector<Member> members_;                      // by rank
  std::map<Place, std::vector<std::string>> blobs_;  // by place
  std::vector<Opening> openings_;                    // by rank, of the communicator that is being made
  FirstFailure failure_;
  std::size_t left_ = 0;
  std::vector<pollfd> polled_;
  Wake wake_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tessera::comm
