// TCP sockets: owned, closed on exec, never blocking. Addresses are those of a name, resolved once.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::comm {

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

// All addresses of the name, at least one. May ask a name server, whose deadline is the system's. Throws UsageError
// naming the host.
std::vector<Address> resolve(const Endpoint& endpoint);

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int descriptor() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

  // What could be moved now; 0 when nothing. None when the connection has ended or broken.
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

// Closed when the address does not answer by the deadline; `why` says how.
Socket connect_to(const Address& address, std::chrono::steady_clock::time_point deadline, std::string& why);

// Whether any of `events` (poll(2)) came before the deadline, or the other side has gone.
bool wait_for(int descriptor, short events, std::chrono::steady_clock::time_point deadline);

}  // namespace tessera::comm
