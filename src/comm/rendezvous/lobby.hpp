// Connections that are not a rank's yet. Whoever connects gets a place for a few seconds, in which it has to prove that
// it holds the token; there are few places, and the oldest one is given to whoever comes next when all are taken. So a
// flood neither fills the memory nor keeps a rank out, which tries again when its place was taken.
// Thread safety: one thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/connection.hpp"
#include "comm/rendezvous/handshake.hpp"

namespace tessera::comm {

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
  bool is_empty() const { return guests_.empty(); }
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

}  // namespace tessera::comm
