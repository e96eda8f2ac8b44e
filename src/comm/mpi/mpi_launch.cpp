// The launch of this process as one that an MPI launcher has started. On the CPU MPI introduces the ranks to each other
// and carries messages between hosts; with CUDA devices it only says where their rendezvous is.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include "comm/introduction.hpp"
#include "comm/launch.hpp"
#include "comm/mpi/mpi_process.hpp"
#include "comm/mpi/process_job.hpp"
#include "comm/rank_log.hpp"
#include "comm/rendezvous/handshake.hpp"
#include "comm/rendezvous/join.hpp"
#include "comm/start.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

// Both are MPI's: what the launcher has left in the environment, and what the library makes of it.
void require_agreement(const Start& start, const MpiProcess& process) {
  if (start.rank == process.rank() && (start.ranks == 0 || start.ranks == process.size())) return;
  throw UsageError(fmt::format(
      "the environment says that {} has started this process as rank {} of {}, but MPI says that it is rank "
      "{} of {}: start it with the mpirun of the MPI that it is built with, in an environment without "
      "another launcher's variables",
      start.by, start.rank, start.ranks == 0 ? "some" : fmt::to_string(start.ranks), process.rank(), process.size()));
}

// ---- where ranks with CUDA devices meet ----

// What rank 0 tells the others over MPI, which is the job's own.
struct Invitation {
  std::array<char, 256> address;
  std::array<char, 65> token;
  std::uint16_t port;  // 0: rank 0 cannot listen
};

std::string fresh_token() {
  std::string token;
  for (const char each : fresh_nonce()) token += fmt::format("{:02x}", static_cast<unsigned char>(each));
  return token;
}

// Of rank 0's host.
std::string address_for(const Place& place) {
  if (place.hosts == 1) return "127.0.0.1";
  const char* const chosen = std::getenv("MASTER_ADDR");
  return chosen == nullptr ? reachable_address() : chosen;
}

template <std::size_t size>
void write_text(std::array<char, size>& to, const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), size - 1), to.begin());
}

MeetingPlace place_of_invitation(const Invitation& invitation, int local_rank) {
  return {.endpoint = {.host = invitation.address.data(), .port = invitation.port},
          .token = invitation.token.data(),
          .local_rank = local_rank};
}

// Rank 0 listens at a port that is free and invites the others.
MeetingPoint meet_over(MpiProcess& process, const Start& start, std::chrono::milliseconds timeout) {
  const std::chrono::milliseconds patience = start_timeout(timeout);
  const Place place = find_place(process, patience);
  Invitation invitation{};
  MeetingPoint point{.place = {}, .server = nullptr};
  std::exception_ptr failure;
  if (start.rank == 0) {
    try {
      write_text(invitation.token, fresh_token());
      write_text(invitation.address, address_for(place));
      point.server = serve(place_of_invitation(invitation, 0), start, timeout);
      invitation.port = point.server->port();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  invitation = all_values(process, invitation, patience).front();
  if (failure) std::rethrow_exception(failure);
  if (invitation.port == 0) throw CommunicationError("rank 0 cannot listen for the others");
  const auto here = std::find(place.here.begin(), place.here.end(), start.rank);
  point.place = place_of_invitation(invitation, static_cast<int>(here - place.here.begin()));
  return point;
}

std::exception_ptr launch_over_mpi(MpiProcess& process, const ProcessStart& how, const Launched& launched) {
  ProcessJob job(process, how.options.timeout);
  return run_in_shared_memory(job, how, launched);
}

}  // namespace

bool has_mpi() { return true; }

std::exception_ptr launch_mpi_process(const Start& start, const LaunchOptions& options, const Launched& launched) {
  MpiProcess& process = MpiProcess::instance({.start = start_timeout(options.timeout), .end = options.timeout});
  try {
    require_agreement(start, process);
    Start known = start;
    known.ranks = process.size();
    RankLog log(options.log_dir, process.rank());
    const ProcessStart how{.start = known, .options = options, .log = log};
    const std::exception_ptr failure = resolve(options.device) == DeviceKind::cuda
                                           ? run_over_nccl(meet_over(process, known, options.timeout), how, launched)
                                           : launch_over_mpi(process, how, launched);
    if (failure) process.abandon();
    return failure;
  } catch (...) {  // before there was a job: the other processes do not know
    process.abandon();
    const std::exception_ptr failure = exception_from_rank(process.rank(), std::current_exception());
    launched.report(failure);
    return failure;
  }
}

}  // namespace tessera::comm
