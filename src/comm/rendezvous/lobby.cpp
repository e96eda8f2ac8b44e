// From connections to ranks.
#include "comm/rendezvous/lobby.hpp"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "tessera/base/error.hpp"

namespace tessera::comm {

using std::chrono::steady_clock;

// Without files to spare, the oldest guest's goes to whoever comes next.
void Lobby::take_from(const Socket& listener) {
  for (std::size_t taken = 0; taken < rules_.places; ++taken) {
    std::optional<Accepted> accepted;
    try {
      accepted = accept_from(listener);
    } catch (const std::system_error&) {
      if (guests_.empty()) return;
      guests_.pop_front();
      continue;
    }
    if (!accepted) return;
    if (guests_.size() == rules_.places) guests_.pop_front();
    Guest& guest = guests_.emplace_back(Guest{.connection = {std::move(accepted->socket), most_handshake_payload},
                                              .from = to_string(accepted->from),
                                              .nonce = fresh_nonce(),
                                              .deadline = steady_clock::now() + rules_.most_time});
    guest.connection.send(FrameKind::challenge, challenge_payload(guest.nonce));
  }
}

std::vector<Lobby::Admitted> Lobby::admit() {
  std::vector<Admitted> admitted;
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    std::optional<int> rank;
    const Progress progress = advance(*guest, rank);
    if (progress == Progress::admitted) admitted.push_back({*rank, std::move(guest->connection)});
    guest = progress == Progress::waits ? std::next(guest) : guests_.erase(guest);
  }
  return admitted;
}

Lobby::Progress Lobby::advance(Guest& guest, std::optional<int>& rank) {
  const bool there = guest.connection.receive();
  try {
    if (!guest.refused) {
      if (const std::optional<Frame> frame = guest.connection.next()) {
        if (frame->kind != FrameKind::hello) throw DataError("its first message is no hello");
        const Progress progress = hear(guest, frame->payload, rank);
        if (progress != Progress::waits) return progress;
      }
    }
  } catch (const UsageError& error) {
    refuse(guest, error.what());
  } catch (const DataError& error) {
    refuse(guest, error.what());
    return Progress::gone;
  }
  const bool told = guest.connection.flush() && !guest.connection.has_to_send();
  const bool over = steady_clock::now() > guest.deadline || (guest.refused && told);
  return there && !over ? Progress::waits : Progress::gone;
}

Lobby::Progress Lobby::hear(Guest& guest, std::string_view payload, std::optional<int>& rank) {
  const Hello hello = read_hello(payload, rules_.token, guest.nonce);
  const auto number = static_cast<int>(hello.handshake.rank_number);
  if (!hello.holds_token) return refuse(guest, "it does not hold the job's token (TESSERA_TOKEN)");
  if (hello.handshake.ranks != static_cast<std::uint32_t>(rules_.ranks)) {
    return refuse(guest, fmt::format("it is rank {} of a job of {} ranks, and this one has {}", number,
                                     hello.handshake.ranks, rules_.ranks));
  }
  if (hello.handshake.rank_number >= hello.handshake.ranks) return refuse(guest, "its rank is none of the job's");
  const std::string objection = rules_.objection(number);
  if (!objection.empty()) return refuse(guest, objection);
  guest.connection.send(FrameKind::welcome, welcome_payload(rules_.token, hello.handshake));
  rank = number;
  return Progress::admitted;
}

Lobby::Progress Lobby::refuse(Guest& guest, const std::string& why) {
  ++refused_;
  last_refusal_ = fmt::format("{}: {}", guest.from, why);
  guest.refused = true;
  guest.connection.send(FrameKind::refusal, why);
  return Progress::waits;
}

void Lobby::add_to(std::vector<pollfd>& polled) const {
  for (const Guest& guest : guests_) {
    const short events = guest.connection.has_to_send() ? POLLIN | POLLOUT : POLLIN;
    polled.push_back({.fd = guest.connection.descriptor(), .events = events, .revents = 0});
  }
}

std::string Lobby::refusals() const {
  if (refused_ == 0) return "";
  return fmt::format("; {} connection{} refused, the last from {}", refused_, refused_ == 1 ? " was" : "s were",
                     last_refusal_);
}

}  // namespace tessera::comm
