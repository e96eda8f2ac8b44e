// Ranks that meet over real sockets of this machine, as threads of the test: each joins, runs a body, and leaves.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/rendezvous/rendezvous_control.hpp"
#include "comm/rendezvous/server.hpp"

namespace tessera::comm {

struct MeetingOptions {
  int ranks = 1;
  std::string token = "a token of this test";
  std::string job = "";
  std::string host = "127.0.0.1";
  std::chrono::milliseconds timeout{60'000};
  std::chrono::milliseconds start_timeout{60'000};
  std::chrono::milliseconds handshake_time{5'000};
};

class Meeting {
 public:
  explicit Meeting(const MeetingOptions& options) : options_(options), server_(server_options(options)) {}

  Endpoint endpoint() const { return {.host = options_.host, .port = server_.port()}; }

  JoinOptions join_options(int rank) const {
    return {.endpoint = endpoint(),
            .token = options_.token,
            .rank = rank,
            .ranks = options_.ranks,
            .start_timeout = options_.start_timeout,
            .job = options_.job};
  }

  using Body = std::function<void(Control&)>;

  // Returns what each of the ranks from `first` on threw, or "". A rank that throws aborts the job.
  std::vector<std::string> run(const Body& body, int first = 0) const {
    std::vector<std::string> texts(static_cast<std::size_t>(options_.ranks));
    std::vector<std::thread> threads;
    for (int rank = first; rank < options_.ranks; ++rank) {
      threads.emplace_back([&, rank] { texts[static_cast<std::size_t>(rank)] = run_rank(body, rank); });
    }
    for (std::thread& thread : threads) thread.join();
    return texts;
  }

 private:
  static ServerOptions server_options(const MeetingOptions& options) {
    ServerOptions server;
    server.endpoint.host = options.host;
    server.token = options.token;
    server.job = options.job;
    server.ranks = options.ranks;
    server.timeout = options.timeout;
    server.handshake_time = options.handshake_time;
    return server;
  }

  std::string run_rank(const Body& body, int rank) const {
    try {
      const std::unique_ptr<Control> joined = join_rendezvous(join_options(rank), options_.timeout);
      Control& control = *joined;
      try {
        body(control);
        control.leave();
      } catch (const std::exception& error) {
        control.abort(error.what(), std::current_exception());
        return error.what();
      }
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  MeetingOptions options_;
  RendezvousServer server_;
};

}  // namespace tessera::comm
