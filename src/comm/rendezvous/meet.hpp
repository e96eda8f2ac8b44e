// What a process does with the rendezvous when its job starts: rank 0 opens it, everybody joins, and those who need
// nothing of it afterwards introduce themselves there.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "comm/control/control.hpp"
#include "comm/introduction.hpp"
#include "comm/rendezvous/join.hpp"
#include "comm/rendezvous/server.hpp"
#include "comm/start.hpp"

namespace tessera::comm {

// Where the ranks meet, and on rank 0 the server that is there.
struct MeetingPoint {
  MeetingPlace place;
  std::unique_ptr<RendezvousServer> server;
};

// As meeting_place(). timeout: for waits of the ranks for each other.
MeetingPoint meeting_point(const Environment& environment, const Start& start, std::chrono::milliseconds timeout);
std::unique_ptr<RendezvousServer> serve(const MeetingPlace& place, const Start& start,
                                        std::chrono::milliseconds timeout);

JoinOptions join_options(const MeetingPlace& place, const Start& start, std::chrono::milliseconds timeout);

// Over a channel of its own. Its deadline is the control's, whatever the caller's is.
class RendezvousIntroduction final : public Introduction {
 public:
  explicit RendezvousIntroduction(Control& control)  // collective
      : control_(control), channel_(control.open("introduction", std::nullopt, "").channel) {}

  int rank() const final { return control_.rank(); }
  int size() const final { return control_.size(); }
  std::string_view backend_name() const final { return "shared memory"; }
  std::vector<std::byte> all_gather(std::span<const std::byte> mine, std::chrono::milliseconds timeout) final;

 private:
  Control& control_;
  const std::size_t channel_;
  std::uint64_t gathered_ = 0;
};

}  // namespace tessera::comm
