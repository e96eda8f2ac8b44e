// How the processes of a launch meet: where that is, rank 0 opening a server there, finding it and proving to each
// other that both hold the token, and introducing themselves.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/control/control.hpp"
#include "comm/introduction.hpp"
#include "comm/rendezvous/server.hpp"
#include "comm/rendezvous/wire.hpp"
#include "comm/start.hpp"

namespace tessera::comm {

// ---- the place, from the environment ----

struct MeetingPlace {
  Endpoint endpoint{};
  std::string token = "";  // empty: none
  int local_rank = 0;      // among the ranks of this host
  std::string job = "";    // as its launcher names it; empty: not known
};

// Host: MASTER_ADDR, else 127.0.0.1 for a SLURM step on one node, else the first of SLURM's nodes. Port: TESSERA_PORT,
// else MASTER_PORT (and one more where torchrun says that it listens there itself), else one that SLURM's job and step
// give. Token: TESSERA_TOKEN, of 16 characters or more. The job: SLURM's numbers, or torchrun's run, else, without a
// token, name_of_program(). Throws UsageError naming the variable that is missing or makes no sense.
MeetingPlace meeting_place(const Environment& environment, const Start& start);

// Tells apart what scripts of one host start at one port. `arguments` have a zero byte behind each.
std::string name_of_program(std::string_view arguments, std::string_view directory);

// "node01" of "node[01-04,7],other".
std::string first_of_nodes(const std::string& list);

// ---- serving ----

// Where the ranks meet, and on rank 0 the server that is there.
struct MeetingPoint {
  MeetingPlace place;
  std::unique_ptr<RendezvousServer> server;
};

// Does what meeting_place() does. timeout: for waits of the ranks for each other.
MeetingPoint meeting_point(const Environment& environment, const Start& start, std::chrono::milliseconds timeout);
std::unique_ptr<RendezvousServer> serve(const MeetingPlace& place, const Start& start,
                                        std::chrono::milliseconds timeout);

// ---- joining ----

struct JoinOptions {
  Endpoint endpoint{};
  std::string token = "";
  int rank = 0;
  int ranks = 1;
  std::chrono::milliseconds start_timeout{60'000};  // for the server to be there
  std::string job = "";                             // MeetingPlace's
};

JoinOptions join_options(const MeetingPlace& place, const Start& start, std::chrono::milliseconds timeout);

// Tries until the deadline: rank 0 may still be loading, its name may not be known yet, others may crowd the door, or
// stand there in rank 0's place without the secret, as the server of another job does. Blocks. Throws UsageError when
// the job's own server refuses this rank; CommunicationError naming rank 0 after the deadline.
using Resolver = std::function<std::vector<Address>(const Endpoint& endpoint, std::string& why)>;
Connection join(const JoinOptions& options, const Resolver& addresses_of = comm::addresses_of);

// ---- introducing ----

// Ranks that know each other already are told where to meet: rank 0 listens at a port that is free and invites the
// others, with a token of the job's own. Collective.
MeetingPoint meet_over(Introduction& introduction, const Start& start, std::chrono::milliseconds timeout);

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
