// A rank and the rendezvous exchange messages through these, from the bottom up: sockets, frames of values
// (fields.hpp), and connections that have both. Everything that is read is bounded before anything is kept of it.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/fields.hpp"
#include "comm/job_failure.hpp"
#include "comm/pinned.hpp"
#include "tessera/base/bytes.hpp"

namespace tessera::comm {

// ---- sockets ----
//
// TCP sockets: owned, closed on exec, never blocking. Addresses are those of a name, resolved once.

// Where the ranks meet.
struct Endpoint {
  std::string host = "";
  std::uint16_t port = 0;
};
std::string to_string(const Endpoint& endpoint);  // "node1:29500", "[::1]:29500"

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  bool is_loopback() const;
  std::uint16_t port() const;
  void set_port(std::uint16_t port);
};
std::string to_string(const Address& address);

// All addresses of the name; none where it has none, or none yet, and `why` says which. May ask a name server, whose
// deadline is the system's.
std::vector<Address> addresses_of(const Endpoint& endpoint, std::string& why);
// The same, at least one. Throws UsageError naming the host.
std::vector<Address> resolve(const Endpoint& endpoint);
// An address of this host that other hosts may reach, in numbers: one that its name has, else that of its first
// interface beside the loopback one. Throws UnavailableError where there is none.
std::string reachable_address();

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

  // Both return what could be moved now; 0 when nothing, none when the connection has ended or broken.
  std::optional<std::size_t> read_some(std::span<char> into);
  std::optional<std::size_t> write_some(std::string_view bytes);

 private:
  int descriptor_ = -1;
};

// Listens at this address alone. A port of 0 is chosen by the system and stored. Throws std::system_error.
Socket listen_at(Address& address);

// A connection that was waiting, or none. Throws std::system_error when the process may have no more files.
struct Accepted {
  Socket socket;
  Address from;
};
std::optional<Accepted> accept_from(const Socket& listener);

// Closed when the address does not answer by the deadline, or is of a kind that this kernel does not have; `why` says
// how.
Socket connect_to(const Address& address, std::chrono::steady_clock::time_point deadline, std::string& why);

// Whether any of `events` (poll(2)) came before the deadline, or the other side has gone.
bool wait_for(int descriptor, short events, std::chrono::steady_clock::time_point deadline);

// Wakes a thread that polls descriptors. Thread safety: wake() from any thread.

class Wake : Pinned {
 public:
  Wake();
  ~Wake();

  void wake() noexcept;
  pollfd polled() const { return {.fd = descriptor_, .events = POLLIN, .revents = 0}; }
  void clear() noexcept;  // by the thread that was woken

 private:
  int descriptor_;
};

// ---- frames ----
//
// Messages on a connection: frames of four bytes of length, one of kind, and a payload. What is read is bounded before
// anything is kept of it.

// The first four are the handshake (handshake.hpp), the others follow once a rank is admitted.
enum class FrameKind : std::uint8_t {
  challenge = 1,  // server: version, its nonce
  hello,          // rank: version, rank, ranks, its nonce, proof
  welcome,        // server: proof
  refusal,        // server: why
  announce,       // rank: channel, signature, and a blob where all ranks' blobs are wanted
  late,           // rank: channel, position, and whether the rank waits on the host or on its device
  failed,         // rank: cause. server: rank, verdict's channel and position, cause
  left,           // either: rank
  reported,       // either: nothing
  agreed,         // server: channel, position
  gathered,       // server: channel, position, every rank's blob
  alive,          // rank: it makes progress. server: so do those for whom this rank waits
  there,          // server: some ranks have left; are you there? rank: yes
};
constexpr std::uint8_t last_frame_kind = static_cast<std::uint8_t>(FrameKind::there);

// Bytes of a failure's cause: a longer one loses its end. Every limit of messages has room for so many.
constexpr std::size_t most_cause = 32 << 10;

// How long both sides of a connection wait for what the end of a job still has to say.
constexpr std::chrono::seconds last_words{2};

struct Frame {
  FrameKind kind;
  std::string_view payload;  // of the reader; until its next call
};

// Takes bytes as they come, in any pieces, and gives frames. Thread safety: one thread.
class FrameReader {
 public:
  explicit FrameReader(Bytes most_payload) : most_(most_payload) {}

  // From now on; for what has come already, too.
  void allow(Bytes most_payload) { most_ = most_payload; }

  void feed(std::string_view bytes);
  // None when no whole frame is there. Throws DataError for a kind that does not exist and a payload above the limit,
  // as soon as a frame's first five bytes have come.
  std::optional<Frame> next();

 private:
  Bytes most_;
  std::string bytes_;
  std::size_t begin_ = 0;  // of the next frame
};

void append_frame(std::string& out, FrameKind kind, std::string_view payload);

// ---- connections ----
//
// A socket with frames on both sides: what came and is not read yet, what is to be sent and could not be yet.
// Thread safety: one thread.

class Connection {
 public:
  Connection(Socket socket, Bytes most_payload) : socket_(std::move(socket)), reader_(most_payload) {}

  int descriptor() const { return socket_.descriptor(); }
  // From now on a payload may be so large, and the other side's host silent for so long, or 30 s, before it counts as
  // gone.
  void admit(Bytes most_payload, std::chrono::milliseconds silence);

  // Takes some of what is there; false when the other side has gone. Frames that came before that are still given.
  bool receive();
  std::optional<Frame> next() { return reader_.next(); }  // throws DataError

  void send(FrameKind kind, std::string_view payload) { append_frame(out_, kind, payload); }
  // Whole frames, which are taken.
  void send_frames(std::string& frames) {
    out_.append(frames);
    frames.clear();
  }
  bool flush();  // as much as goes now; false when the other side has gone
  bool has_to_send() const { return sent_ < out_.size(); }
  void flush_until(std::chrono::steady_clock::time_point deadline);

  // Says what there is to do for it.
  pollfd polled() const {
    return {.fd = descriptor(), .events = static_cast<short>(has_to_send() ? POLLIN | POLLOUT : POLLIN), .revents = 0};
  }

 private:
  Socket socket_;
  FrameReader reader_;
  std::string out_;
  std::size_t sent_ = 0;
};

}  // namespace tessera::comm
