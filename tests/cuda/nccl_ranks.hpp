// Ranks with the nccl backend as threads of the test, each with a device of its own, over the tests' NCCL and one of
// the two control channels.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../comm/property.hpp"
#include "../comm/rendezvous_ranks.hpp"
#include "comm/control/control_room.hpp"
#include "comm/nccl/nccl_backend.hpp"
#include "fake_nccl.hpp"
#include "tessera/comm/world.hpp"

namespace tessera::comm {

struct NcclRanks {
  int ranks = 1;
  std::chrono::milliseconds timeout{60'000};
  FakeFaults faults{};
  NcclOptions options{.staging = Bytes(1 << 20)};
  bool over_sockets = false;
  bool one_device = false;                        // for all ranks
  std::function<void(const FakeCounts&)> look{};  // when all have left
};

// Returns what each rank's body threw, or "".
template <typename Body>
std::vector<std::string> run_nccl_ranks(const NcclRanks& how, const Body& body) {
  FakeNccl nccl(how.faults);
  ControlRoom room(how.ranks, how.timeout);
  std::unique_ptr<Meeting> meeting;
  if (how.over_sockets) meeting = std::make_unique<Meeting>(MeetingOptions{.ranks = how.ranks, .timeout = how.timeout});
  const auto control_of = [&](int rank) -> std::unique_ptr<Control> {
    if (!meeting) return std::make_unique<ThreadControl>(room, rank);
    return join_rendezvous(meeting->join_options(rank), how.timeout);
  };
  std::vector<std::string> texts(static_cast<std::size_t>(how.ranks));
  const auto run_rank = [&](int rank) {
    const std::unique_ptr<Control> control = control_of(rank);
    const Device device = Device::cuda(how.one_device ? 0 : rank);
    conformance::device_of_this_thread() = device;
    NcclJob job(nccl, *control, device, how.options);
    RankLog log(std::nullopt, rank);
    try {
      World world(std::make_unique<NcclBackend>(job, 1, log, Place{}));
      try {
        body(world);
      } catch (const std::exception& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
        throw;
      }
    } catch (const std::exception& error) {
      control->abort(error.what(), std::current_exception());
    }
    control->leave();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < how.ranks; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (nccl.open_handles() != 0) texts.emplace_back("communicators of NCCL are left over");
  if (how.look) how.look(nccl.counts());
  if (nccl.known_memory() != 0) texts.emplace_back("memory is still registered with NCCL");
  return texts;
}

}  // namespace tessera::comm
