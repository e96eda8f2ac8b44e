// Ranks whose collectives go over a control channel, as threads of the test that meet in memory or over sockets; each
// runs a property of the conformance suite.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/control/control_communicator.hpp"
#include "comm/control/control_room.hpp"
#include "comm/rank_log.hpp"
#include "comm/world_backend.hpp"
#include "rendezvous_ranks.hpp"

namespace tessera::comm {

class ControlBackend final : public World::Backend {
 public:
  ControlBackend(Control& control, RankLog& log) : Backend({.name = "control"}, control, log), control_(control) {}

  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final {
    return make_control_communicator(control_, name, use.group);
  }

 private:
  Control& control_;
};

using Property = void (*)(World&);

// Says what went wrong on a rank. A world that the property itself made fail leaves nothing.
inline std::string violation(Control& control, Property property) {
  std::string text;
  try {
    RankLog log(std::nullopt, control.rank());
    World world(std::make_unique<ControlBackend>(control, log));
    try {
      property(world);
    } catch (const std::exception& error) {
      text = error.what();
      throw;
    }
  } catch (const std::exception& error) {
    control.abort(error.what(), std::current_exception());
  }
  control.leave();
  return text;
}

template <typename MakeControl>
void check_on_controls(int ranks, Property property, const MakeControl& make_control) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Control> control = make_control(rank);
      texts[static_cast<std::size_t>(rank)] = violation(*control, property);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CAPTURE(ranks);
  for (const std::string& text : texts) CHECK(text == "");
}

inline void check_in_memory(Property property, int ranks, std::chrono::milliseconds timeout) {
  ControlRoom room(ranks, timeout);
  check_on_controls(ranks, property, [&](int rank) { return std::make_unique<ThreadControl>(room, rank); });
}

inline void check_over_sockets(Property property, int ranks, std::chrono::milliseconds timeout) {
  const Meeting meeting({.ranks = ranks, .timeout = timeout});
  check_on_controls(ranks, property, [&](int rank) { return join_rendezvous(meeting.join_options(rank), timeout); });
}

}  // namespace tessera::comm
