// One loop: poll, admit, hear, tell. Nothing in it waits for any one connection.
#include "comm/rendezvous/server.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "comm/control/control.hpp"
#include "comm/rendezvous/wire.hpp"
#include "comm/signature.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

// ---- the lobby: from connections to ranks ----

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

// ---- the server ----

namespace {

constexpr int guests_poll_ms = 100;  // after which guests whose time is over are sent away
// Of a rank's message: a blob, and the signature of a group of thousands of segments.
constexpr Bytes most_member_payload{Control::most_blob + (std::size_t{1} << 20)};

void require_private(const ServerOptions& options, const std::vector<Address>& addresses) {
  if (!options.token.empty()) return;
  for (const Address& address : addresses) {
    if (address.is_loopback()) continue;
    throw UsageError(fmt::format(
        "the ranks would meet at {}, which other hosts can reach, without a secret: set TESSERA_TOKEN to the "
        "same long random text in the environment of every rank",
        to_string(options.endpoint)));
  }
}

std::string failed_payload(const JobFailure& failure) {
  std::string payload;
  FieldWriter writer(payload);
  writer.number(static_cast<std::uint32_t>(failure.rank));
  append_position(payload, failure.verdict);
  writer.raw(failure.cause);
  return payload;
}

}  // namespace

RendezvousServer::RendezvousServer(const ServerOptions& options)
    : options_(options),
      lobby_({.token = options.token,
              .ranks = options.ranks,
              .most_time = options.handshake_time,
              .objection = [this](int rank) { return objection(rank); }}),
      ledger_(options.ranks),
      members_(static_cast<std::size_t>(options.ranks)),
      openings_(members_.size()) {
  listen(options);
  thread_ = std::thread([this] { work(); });
}

RendezvousServer::~RendezvousServer() {
  ending_.store(true);
  wake_.wake();
  thread_.join();
}

// A name may have addresses of which this host has only some (localhost without IPv6): one is enough.
void RendezvousServer::listen(const ServerOptions& options) {
  std::vector<Address> addresses = resolve(options.endpoint);
  require_private(options, addresses);
  std::string why;
  for (Address& address : addresses) {
    if (port_ != 0) address.set_port(port_);
    try {
      listeners_.push_back(listen_at(address));
      port_ = address.port();
    } catch (const std::system_error& error) {
      why = error.code().message();
    }
  }
  if (!listeners_.empty()) return;
  throw UsageError(fmt::format(
      "rank 0 cannot listen at {}, where the ranks are to meet ({}): MASTER_ADDR must be an address of rank "
      "0's host, and TESSERA_PORT or MASTER_PORT a port that is free there",
      to_string(options.endpoint), why));
}

// What rank 0 said last, before it ended this, is there when it ends: the turn after that hears it.
void RendezvousServer::work() noexcept {
  ::pthread_setname_np(::pthread_self(), "rendezvous");
  for (bool ending = false; !std::exchange(ending, ending_.load());) {
    try {
      turn();
    } catch (const std::exception& error) {
      fail(0, fmt::format("the rendezvous failed: {}", error.what()));
    }
  }
  flush_all(steady_clock::now() + last_words);
}

void RendezvousServer::turn() {
  poll_once();
  for (const Socket& listener : listeners_) lobby_.take_from(listener);
  for (Lobby::Admitted& admitted : lobby_.admit()) welcome(std::move(admitted));
  for (int rank = 0; rank < options_.ranks; ++rank) serve(rank);
}

void RendezvousServer::poll_once() {
  polled_.clear();
  polled_.push_back(wake_.polled());
  for (const Socket& listener : listeners_) {
    polled_.push_back({.fd = listener.descriptor(), .events = POLLIN, .revents = 0});
  }
  for (const Member& each : members_) {
    if (!each.connection) continue;
    const short events = each.connection->has_to_send() ? POLLIN | POLLOUT : POLLIN;
    polled_.push_back({.fd = each.connection->descriptor(), .events = events, .revents = 0});
  }
  lobby_.add_to(polled_);
  ::poll(polled_.data(), polled_.size(), ending_.load() ? 0 : guests_poll_ms);
  wake_.clear();
}

std::string RendezvousServer::objection(int rank) const {
  return members_[static_cast<std::size_t>(rank)].came ? fmt::format("rank {} is there already", rank) : "";
}

void RendezvousServer::welcome(Lobby::Admitted admitted) {
  Member& came = member(admitted.rank);
  came.came = true;
  came.connection.emplace(std::move(admitted.connection));
  came.connection->allow(most_member_payload);
  if (failure_.get() != nullptr) came.connection->send(FrameKind::failed, failed_payload(*failure_.get()));
}

// A rank that has left may go; one that has not, and whose connection ends, has crashed.
void RendezvousServer::serve(int rank) {
  Member& served = member(rank);
  if (!served.connection) return;
  const bool there = served.connection->receive();
  try {
    while (const std::optional<Frame> frame = served.connection->next()) hear(rank, *frame);
  } catch (const DataError& error) {
    fail(rank, fmt::format("rank {} sent nonsense: {}", rank, error.what()));
    served.connection.reset();
    return;
  }
  if (there && served.connection->flush()) return;
  served.connection.reset();
  if (served.left) return;
  fail(rank, fmt::format("the process of rank {} has ended, or its host cannot be reached: its connection to the "
                         "rendezvous at {} broke off; what it last said, or its launcher, may tell why",
                         rank, to_string(options_.endpoint)));
}

void RendezvousServer::hear(int rank, const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::announce: return hear_announcement(rank, frame.payload);
    case FrameKind::late: return hear_lateness(rank, frame.payload);
    case FrameKind::failed: return fail(rank, frame.payload);
    case FrameKind::left: return hear_leaving(rank);
    case FrameKind::alive: member(rank).alive = steady_clock::now(); return;
    case FrameKind::reported: return tell_all(FrameKind::reported, "");
    default: throw DataError(fmt::format("a message of kind {} is the server's", static_cast<int>(frame.kind)));
  }
}

// Announcements that cross a failure on their way are nobody's any more.
void RendezvousServer::hear_announcement(int rank, std::string_view payload) {
  if (failure_.get() != nullptr) return;
  FieldReader reader(payload);
  const std::size_t channel = reader.number<std::uint32_t>();
  const bool has_blob = reader.number<std::uint8_t>() != 0;
  const std::string_view code = reader.text();
  const std::size_t place = ledger_.place(channel, rank);
  if (channel == 0) openings_[place] = read_opening(reader, options_.ranks);
  const std::string_view blob = reader.rest();
  if (blob.size() > Control::most_blob) throw DataError(fmt::format("a blob has {} bytes", blob.size()));
  if (has_blob) {
    auto& blobs = blobs_[{channel, ledger_.announced(channel, rank) + 1}];
    blobs.resize(ledger_.members(channel).size());
    blobs[place] = blob;
  }
  const std::uint64_t before = ledger_.agreed(channel);
  conclude(rank, ledger_.announce(rank, channel, code));
  if (failure_.get() != nullptr || ledger_.agreed(channel) == before) return;
  if (channel == 0) open_channels();
  for (const int each : ledger_.members(channel)) member(each).alive = steady_clock::now();  // none has waited in vain
  tell_agreement(channel);
}

void RendezvousServer::open_channels() {
  for (std::vector<int>& group : partition_of(openings_)) ledger_.open(openings_.front().name, std::move(group));
}

void RendezvousServer::tell_agreement(std::size_t channel) {
  const std::uint64_t number = ledger_.agreed(channel);
  std::string payload;
  append_position(payload, {.channel = channel, .number = number});
  const auto blobs = blobs_.find({channel, number});
  const FrameKind kind = blobs == blobs_.end() ? FrameKind::agreed : FrameKind::gathered;
  if (kind == FrameKind::gathered) {
    for (const std::string& blob : blobs->second) FieldWriter(payload).text(blob);
    blobs_.erase(blobs);
  }
  for (const int each : ledger_.members(channel)) tell(member(each), kind, payload);
}

void RendezvousServer::hear_lateness(int rank, std::string_view payload) {
  FieldReader reader(payload);
  const Position position = read_position(reader);
  const bool on_host = reader.number<std::uint8_t>() != 0;
  const auto now = steady_clock::now();
  conclude(rank, ledger_.late({.position = position,
                               .code = reader.rest(),
                               .timeout = options_.timeout,
                               .waiting_for = on_host ? Ledger::WaitFor::ranks : Ledger::WaitFor::end,
                               .is_silent = [&](int other) { return now - member(other).alive >= options_.timeout; }}));
  if (failure_.get() == nullptr && on_host) member(rank).connection->send(FrameKind::alive, "");
}

void RendezvousServer::hear_leaving(int rank) {
  if (std::exchange(member(rank).left, true)) return;
  conclude(rank, ledger_.leave(rank));
  if (++left_ == members_.size()) tell_all(FrameKind::left, "");
}

void RendezvousServer::conclude(int rank, const std::optional<Verdict>& verdict) {
  if (!verdict) return;
  const bool all_came = std::all_of(members_.begin(), members_.end(), [](const Member& each) { return each.came; });
  fail(rank, verdict->text + (all_came ? "" : lobby_.refusals()), verdict->position);
}

void RendezvousServer::fail(int rank, std::string_view cause, const Position& verdict) {
  if (failure_.record(rank, cause, nullptr, verdict)) tell_all(FrameKind::failed, failed_payload(*failure_.get()));
}

void RendezvousServer::tell(Member& each, FrameKind kind, std::string_view payload) {
  if (!each.connection) return;
  each.connection->send(kind, payload);
  each.connection->flush();
}

void RendezvousServer::tell_all(FrameKind kind, std::string_view payload) {
  for (Member& each : members_) tell(each, kind, payload);
}

void RendezvousServer::flush_all(steady_clock::time_point deadline) noexcept {
  for (Member& each : members_) {
    while (each.connection && each.connection->flush() && each.connection->has_to_send() &&
           wait_for(each.connection->descriptor(), POLLOUT, deadline)) {
    }
  }
}

}  // namespace tessera::comm
