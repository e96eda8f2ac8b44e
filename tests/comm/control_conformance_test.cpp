// The conformance suite on collectives over the control channel, with ranks that meet in memory and over sockets.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/control/control_communicator.hpp"
#include "comm/control/thread_control.hpp"
#include "comm/rank_log.hpp"
#include "comm/world_backend.hpp"
#include "conformance.hpp"
#include "rendezvous_ranks.hpp"

using namespace tessera;
using namespace tessera::comm;

namespace {

class ControlBackend final : public World::Backend {
 public:
  ControlBackend(Control& control, RankLog& log)
      : Backend({.name = "control",
                 .rank = control.rank(),
                 .size = control.size(),
                 .device = Device::cpu(),
                 .threads = 1,
                 .timeout = control.timeout()},
                control, log),
        control_(control) {}

  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse&) final {
    return std::make_unique<ControlCommunicator>(control_, std::move(name));
  }

 private:
  Control& control_;
};

using Property = void (*)(World&);

// What went wrong on a rank. A world that the property itself made fail leaves nothing.
std::string violation(Control& control, Property property) {
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
void check(int ranks, Property property, const MakeControl& make_control) {
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

void check_in_memory(Property property, int least_ranks, std::chrono::milliseconds timeout) {
  for (int ranks = least_ranks; ranks <= 5; ++ranks) {
    ThreadControlRoom room(ranks, timeout);
    check(ranks, property, [&](int rank) { return std::make_unique<ThreadControl>(room, rank); });
  }
}

void check_over_sockets(Property property, int least_ranks, std::chrono::milliseconds timeout) {
  for (const int ranks : {1, 2, 3, 5}) {
    if (ranks < least_ranks) continue;
    const Meeting meeting({.ranks = ranks, .timeout = timeout});
    check(ranks, property,
          [&](int rank) { return std::make_unique<RendezvousControl>(meeting.join_options(rank), timeout); });
  }
}

}  // namespace

#define TESSERA_CONTROL_PROPERTY(name, least_ranks, timeout)                                         \
  TEST_CASE("control in memory: " #name) {                                                           \
    check_in_memory(tessera::conformance::name, least_ranks, std::chrono::milliseconds(timeout));    \
  }                                                                                                  \
  TEST_CASE("control over sockets: " #name) {                                                        \
    check_over_sockets(tessera::conformance::name, least_ranks, std::chrono::milliseconds(timeout)); \
  }
TESSERA_CONFORMANCE_PROPERTIES(TESSERA_CONTROL_PROPERTY)
