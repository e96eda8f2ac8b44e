// A lobby, in which connections become ranks, and one loop: poll, admit, hear, tell. Nothing in it waits for any one
// connection.
#include "comm/rendezvous/server.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <list>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/collective_errors.hpp"
#include "comm/control/control_room.hpp"
#include "comm/introduction.hpp"
#include "comm/patience.hpp"
#include "comm/rendezvous/handshake.hpp"
#include "comm/start.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

using std::chrono::steady_clock;

// ---- the lobby ----
//
// Connections that are not a rank's yet. Whoever connects gets a place for a few seconds, in which it has to prove that
// it holds the token; there are few places, and the oldest one is given to whoever comes next when all are taken. So a
// flood neither fills the memory nor keeps a rank out, which tries again when its place was taken.

namespace {

class Lobby {
 public:
  // Whether the rank was there before; from now on it is. So of two guests that prove to be one rank, also at once, the
  // first is let in.
  using TakeRank = std::function<bool(int rank)>;
  Lobby(const ServerOptions& options, TakeRank take_rank) : options_(options), take_rank_(std::move(take_rank)) {}

  // Takes whoever waits at the listener. Without files to spare, the oldest guest's goes to whoever comes next.
  void take_from(const Socket& listener) {
    for (std::size_t taken = 0; taken < places; ++taken) {
      std::optional<Accepted> accepted;
      try {
        accepted = accept_from(listener);
      } catch (const std::system_error& error) {
        if (guests_.empty()) return note_no_files(error);
        guests_.pop_front();
        continue;
      }
      if (!accepted) return;
      if (guests_.size() == places) guests_.pop_front();
      Guest& guest = guests_.emplace_back(Guest{.connection = {std::move(accepted->socket), most_handshake_payload},
                                                .from = to_string(accepted->from),
                                                .nonce = fresh_nonce(),
                                                .deadline = steady_clock::now() + options_.handshake_time});
      guest.connection.send(FrameKind::challenge, challenge_payload(guest.nonce));
      static_cast<void>(guest.connection.flush());  // now, so that its answer may be there in the next turn
    }
  }

  struct Admitted {
    int rank;
    Connection connection;
  };
  // Who has proved itself since; ends connections whose time is over.
  std::vector<Admitted> admit() {
    std::vector<Admitted> admitted;
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      bool stays = false;
      const std::optional<int> rank = advance(*guest, stays);
      if (rank) admitted.push_back({*rank, std::move(guest->connection)});
      guest = stays ? std::next(guest) : guests_.erase(guest);
    }
    return admitted;
  }

  void add_to(std::vector<pollfd>& polled) const {
    for (const Guest& guest : guests_) polled.push_back(guest.connection.polled());
  }

  // "; 3 connections were refused, the last from …: …", or empty.
  std::string refusals() const {
    if (refused_ == 0) return no_files_;
    return no_files_ + fmt::format("; {} connection{} refused, the last from {}", refused_,
                                   refused_ == 1 ? " was" : "s were", last_refusal_);
  }

 private:
  static constexpr std::size_t places = 64;
  struct Guest {
    Connection connection;
    std::string from;
    std::string nonce;
    steady_clock::time_point deadline;
    Handshake handshake = {};  // as far as it was heard
    bool refused = false;      // stays until it has been told why
  };

  void note_no_files(const std::system_error& error) {
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    no_files_ = fmt::format("; rank 0 can take no more connections, with a limit of {} open files (ulimit -n): {}",
                            files.rlim_cur, error.code().message());
  }

  // The rank that the guest has proved to be; else whether it may stay.
  std::optional<int> advance(Guest& guest, bool& stays) {
    const bool there = guest.connection.receive();
    try {
      if (!guest.refused) {
        if (const std::optional<Frame> frame = guest.connection.next()) return hear(guest, *frame);
      }
    } catch (const UsageError& error) {
      refuse(guest, error.what());
    } catch (const DataError& error) {
      refuse(guest, error.what());
      return std::nullopt;
    }
    const bool told = guest.connection.flush() && !guest.connection.has_to_send();
    const bool over = steady_clock::now() > guest.deadline || (guest.refused && told);
    stays = there && !over;
    return std::nullopt;
  }

  // Throws UsageError that says why it cannot be admitted, and DataError for what no rank says.
  int hear(Guest& guest, const Frame& frame) const {
    if (frame.kind != FrameKind::hello) throw DataError("its first message is no hello");
    const Hello hello = read_hello(frame.payload, secret_, guest.nonce);
    const Handshake& said = guest.handshake = hello.handshake;
    const auto rank = static_cast<int>(said.rank_number);
    if (!hello.holds_secret) {
      if (!hello.is_of_job) {
        throw UsageError(
            fmt::format("it is rank {} of {}, and this is {}", rank, name_of(hello.job), name_of(options_.job)));
      }
      throw UsageError("it does not hold the job's token (TESSERA_TOKEN)");
    }
    if (said.ranks != static_cast<std::uint32_t>(options_.ranks)) {
      throw UsageError(
          fmt::format("it is rank {} of a job of {} ranks, and this one has {}", rank, said.ranks, options_.ranks));
    }
    if (said.rank_number >= said.ranks) throw UsageError("its rank is none of the job's");
    if (take_rank_(rank)) throw UsageError(fmt::format("rank {} is there already", rank));
    guest.connection.send(FrameKind::welcome, welcome_payload(secret_, said));
    return rank;
  }
  static std::string name_of(const std::string& job) { return job.empty() ? "a job without a name" : job; }

  void refuse(Guest& guest, const std::string& why) {
    ++refused_;
    last_refusal_ = fmt::format("{}: {}", guest.from, why);
    guest.refused = true;
    guest.connection.send(FrameKind::refusal, refusal_payload(secret_, guest.handshake, why));
  }

  const ServerOptions& options_;
  const Secret secret_{options_.token, options_.job};
  const TakeRank take_rank_;
  std::list<Guest> guests_;  // the oldest first
  std::size_t refused_ = 0;
  std::string last_refusal_;
  std::string no_files_;  // why nobody more was let in; empty: nothing kept anybody out
};

// ---- the server ----

constexpr std::chrono::milliseconds guests_poll{100};  // after which guests whose time is over are sent away
// A rank's message is no larger than a blob, and the signature of a group of thousands of segments.
constexpr Bytes most_member_payload{Control::most_blob + Control::most_code + 1024};

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
  writer.position(failure.verdict);
  writer.raw(std::string_view(failure.cause).substr(0, most_cause));
  return payload;
}

}  // namespace

// All of it, but for what begins and ends it, is of its own thread.
class RendezvousServer::Work : Pinned {
 public:
  explicit Work(const ServerOptions& options)
      : options_(options),
        lobby_(options_, [this](int rank) { return take_rank(rank); }),
        room_(options.ranks, options.timeout, [this] { return remark(); }),
        members_(static_cast<std::size_t>(options.ranks)) {
    raise_file_limit();
    listen();
    thread_ = std::thread([this] { work(); });
  }
  ~Work() {
    ending_.store(true);
    wake_.wake();
    thread_.join();
  }

  std::uint16_t port() const { return port_; }

 private:
  using Lock = ControlRoom::Lock;
  struct Member {
    std::optional<Connection> connection;
    bool came = false;
    steady_clock::time_point heard{};  // the last message
  };
  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }

  // A connection for each rank, beside what the program has open.
  void raise_file_limit() const {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    const auto wanted = static_cast<rlim_t>(options_.ranks) + 1024;
    if (files.rlim_cur >= wanted) return;
    files.rlim_cur = std::min(wanted, files.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &files);
  }

  // Whether it was there before. One that has left comes for the next job, whose server will be there soon.
  bool take_rank(int rank) {
    if (member(rank).came && room_.ledger(room_.lock()).has_left(rank)) throw DataError("it has left this job already");
    return std::exchange(member(rank).came, true);
  }

  // Clusters publish names late: asked for as long as the other ranks ask.
  std::vector<Address> addresses_here() const {
    const auto end = steady_clock::now() + start_timeout(options_.timeout);
    for (;;) {
      try {
        return options_.addresses_of(options_.endpoint);
      } catch (const UsageError&) {
        if (steady_clock::now() >= end) throw;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  }

  // A name may have addresses of which this host has only some (localhost without IPv6): one is enough.
  void listen() {
    std::vector<Address> addresses = addresses_here();
    require_private(options_, addresses);
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
        to_string(options_.endpoint), why));
  }

  // The last words of rank 0, before it ended this, are there when it ends: the turn after that hears them.
  void work() noexcept {
    ::pthread_setname_np(::pthread_self(), "rendezvous");
    for (bool ending = false; !std::exchange(ending, ending_.load());) {
      try {
        turn();
      } catch (const std::exception& error) {
        fail(0, fmt::format("the rendezvous failed: {}", error.what()));
      }
    }
    const auto deadline = steady_clock::now() + last_words;
    for (Member& each : members_) {
      if (each.connection) each.connection->flush_until(deadline);
    }
  }

  // Newcomers come last: what guests have said until then is heard before the newcomers get their places.
  void turn() {
    poll_once();
    for (Lobby::Admitted& admitted : lobby_.admit()) welcome(std::move(admitted));
    for (int rank = 0; rank < options_.ranks; ++rank) serve(rank);
    for (const Socket& listener : listeners_) lobby_.take_from(listener);
    ask_who_stays();
  }

  void poll_once() {
    polled_.clear();
    polled_.push_back(wake_.polled());
    for (const Socket& listener : listeners_) {
      polled_.push_back({.fd = listener.descriptor(), .events = POLLIN, .revents = 0});
    }
    for (const Member& each : members_) {
      if (each.connection) polled_.push_back(each.connection->polled());
    }
    lobby_.add_to(polled_);
    const auto longest = std::min(guests_poll, look_interval(options_.timeout));
    ::poll(polled_.data(), polled_.size(), ending_.load() ? 0 : static_cast<int>(longest.count()));
    wake_.clear();
  }

  void welcome(Lobby::Admitted admitted) {
    Member& came = member(admitted.rank);
    came.connection.emplace(std::move(admitted.connection));
    came.connection->admit(most_member_payload, options_.timeout);
    if (room_.failure() != nullptr) came.connection->send(FrameKind::failed, failed_payload(*room_.failure()));
  }

  // A rank that has left may go; one that has not, and whose connection ends, has crashed.
  void serve(int rank) {
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
    if (room_.ledger(room_.lock()).has_left(rank)) return;
    fail(rank, fmt::format("the process of rank {} has ended, or its host cannot be reached: its connection to the "
                           "rendezvous at {} broke off; what it last said, or its launcher, may tell why",
                           rank, to_string(options_.endpoint)));
  }

  void hear(int rank, const Frame& frame) {
    member(rank).heard = steady_clock::now();
    switch (frame.kind) {
      case FrameKind::announce: hear_announcement(rank, frame.payload); break;
      case FrameKind::late: hear_lateness(rank, frame.payload); break;
      case FrameKind::failed: fail(rank, frame.payload); break;
      case FrameKind::left: hear_leaving(rank); break;
      case FrameKind::alive: room_.life(rank).note(steady_clock::now()); break;
      case FrameKind::reported: tell_all(FrameKind::reported, ""); break;
      case FrameKind::there: break;
      default: throw DataError(fmt::format("a message of kind {} is the server's", static_cast<int>(frame.kind)));
    }
    tell_failure();
  }

  // Announcements that cross a failure on their way are nobody's any more.
  void hear_announcement(int rank, std::string_view payload) {
    FieldReader reader(payload);
    const std::size_t channel = reader.number<std::uint32_t>();
    const bool has_blob = reader.number<std::uint8_t>() != 0;
    const std::string_view code = reader.text();
    const std::string_view blob = reader.rest();
    const Lock lock = room_.lock();
    const Position position = room_.announce(lock, rank, channel, code, has_blob ? &blob : nullptr);
    if (room_.failure() == nullptr && room_.ledger(lock).agreed(channel) == position.number) {
      tell_agreement(lock, position);
    }
  }

  void tell_agreement(const Lock& lock, const Position& position) {
    std::string payload;
    FieldWriter writer(payload);
    writer.position(position);
    const auto blobs = room_.take_blobs(lock, position, 1);
    if (blobs) {
      for (const std::string& blob : *blobs) writer.text(blob);
    }
    for (const int each : room_.ledger(lock).members(position.channel)) {
      tell(member(each), blobs ? FrameKind::gathered : FrameKind::agreed, payload);
    }
  }

  void hear_lateness(int rank, std::string_view payload) {
    FieldReader reader(payload);
    const Position position = reader.position();
    const bool on_host = reader.number<std::uint8_t>() != 0;
    room_.late(room_.lock(), rank, position, reader.rest(), on_host ? Ledger::WaitFor::ranks : Ledger::WaitFor::end);
    if (room_.failure() == nullptr && on_host) member(rank).connection->send(FrameKind::alive, "");
  }

  void hear_leaving(int rank) {
    const Lock lock = room_.lock();
    room_.leave(lock, rank);
    tell_failure();
    if (room_.all_left(lock)) tell_all(FrameKind::left, "");
    if (!leavers_) leavers_.emplace(options_.timeout);
  }

  // Ranks that have left wait for the others. These may still have work that needs nobody, but their processes answer;
  // and that this one asks tells those who wait that it has not stopped either.
  void ask_who_stays() {
    const Lock lock = room_.lock();
    if (!leavers_ || room_.all_left(lock) || room_.failure() != nullptr) return;
    leavers_->look();
    std::vector<int> waiting;
    std::vector<int> silent;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      const bool has_left = room_.ledger(lock).has_left(rank);
      if (has_left) waiting.push_back(rank);
      if (!has_left && leavers_->is_over(member(rank).heard)) silent.push_back(rank);
    }
    if (!silent.empty()) {
      room_.abort(lock, waiting.front(), never_left_text(waiting, silent, options_.timeout), nullptr);
      return tell_failure();
    }
    if (steady_clock::now() < next_question_) return;
    next_question_ = steady_clock::now() + look_interval(options_.timeout);
    tell_all(FrameKind::there, "");
  }

  // Who was refused may be who is missing.
  std::string remark() const {
    const bool all_came = std::all_of(members_.begin(), members_.end(), [](const Member& each) { return each.came; });
    return all_came ? "" : lobby_.refusals();
  }

  void fail(int rank, std::string_view cause) {
    room_.abort(rank, cause, nullptr);
    tell_failure();
  }

  // Tells the first failure, once.
  void tell_failure() {
    if (room_.failure() == nullptr || std::exchange(failure_told_, true)) return;
    tell_all(FrameKind::failed, failed_payload(*room_.failure()));
  }

  void tell(Member& each, FrameKind kind, std::string_view payload) {
    if (!each.connection) return;
    each.connection->send(kind, payload);
    each.connection->flush();
  }

  void tell_all(FrameKind kind, std::string_view payload) {
    for (Member& each : members_) tell(each, kind, payload);
  }

  const ServerOptions options_;
  std::vector<Socket> listeners_;
  std::uint16_t port_ = 0;
  Lobby lobby_;
  ControlRoom room_;
  std::vector<Member> members_;  // by rank
  bool failure_told_ = false;
  std::optional<Patience> leavers_;  // their wait for the others
  steady_clock::time_point next_question_{};
  std::vector<pollfd> polled_;
  Wake wake_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;  // last: it uses all of the above
};

RendezvousServer::RendezvousServer(const ServerOptions& options) : work_(std::make_unique<Work>(options)) {}
RendezvousServer::~RendezvousServer() = default;
std::uint16_t RendezvousServer::port() const { return work_->port(); }

}  // namespace tessera::comm
