// Sockets of the operating system.
#include "comm/rendezvous/socket.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

constexpr int waiting_connections = 1024;  // that the system keeps before they are accepted

[[noreturn]] void fail(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

std::string text_of(int error) { return std::generic_category().message(error); }

void set(int descriptor, int level, int name, int value) {
  static_cast<void>(::setsockopt(descriptor, level, name, &value, sizeof(value)));
}

// A host that has gone without a word is noticed after about half a minute.
void watch_peer(int descriptor) {
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
  set(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
}

bool is_temporary(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

const sockaddr* pointer(const Address& address) { return reinterpret_cast<const sockaddr*>(&address.bytes); }
sockaddr* pointer(Address& address) { return reinterpret_cast<sockaddr*>(&address.bytes); }

Socket open_for(const Address& address) {
  Socket socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket.is_open()) fail("socket");
  return socket;
}

int error_of(const Socket& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

// A port nobody listens on may be the one that the system gave this end: then it has met itself.
bool met_itself(const Socket& socket) {
  Address here{.bytes = {}, .size = sizeof(sockaddr_storage)};
  Address there = here;
  if (::getsockname(socket.descriptor(), pointer(here), &here.size) != 0) return false;
  if (::getpeername(socket.descriptor(), pointer(there), &there.size) != 0) return false;
  return here.size == there.size && std::memcmp(&here.bytes, &there.bytes, here.size) == 0;
}

}  // namespace

std::string to_string(const Endpoint& endpoint) {
  const bool brackets = endpoint.host.find(':') != std::string::npos;
  return brackets ? fmt::format("[{}]:{}", endpoint.host, endpoint.port)
                  : fmt::format("{}:{}", endpoint.host, endpoint.port);
}

bool Address::is_loopback() const {
  if (bytes.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(bytes);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(bytes).sin6_addr);
}

std::uint16_t Address::port() const {
  return ntohs(bytes.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(bytes).sin_port
                                          : reinterpret_cast<const sockaddr_in6&>(bytes).sin6_port);
}

void Address::set_port(std::uint16_t port) {
  if (bytes.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(bytes).sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6&>(bytes).sin6_port = htons(port);
  }
}

std::string to_string(const Address& address) {
  std::array<char, NI_MAXHOST> host{};
  ::getnameinfo(pointer(address), address.size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  return to_string(Endpoint{host.data(), address.port()});
}

std::vector<Address> resolve(const Endpoint& endpoint) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int status = ::getaddrinfo(endpoint.host.c_str(), fmt::to_string(endpoint.port).c_str(), &wanted, &list);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  if (status != 0) {
    throw UsageError(fmt::format("the ranks' meeting place {} has no address ({}): MASTER_ADDR must name rank 0's host",
                                 to_string(endpoint), ::gai_strerror(status)));
  }
  std::vector<Address> addresses;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    Address address;
    std::memcpy(&address.bytes, each->ai_addr, each->ai_addrlen);
    address.size = each->ai_addrlen;
    addresses.push_back(address);
  }
  if (addresses.empty()) throw UsageError(fmt::format("{} has no address of IPv4 or IPv6", to_string(endpoint)));
  return addresses;
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Socket::~Socket() {
  if (is_open()) ::close(descriptor_);
}

std::optional<std::size_t> Socket::read_some(std::span<char> into) {
  const ssize_t count = ::recv(descriptor_, into.data(), into.size(), 0);
  if (count > 0) return static_cast<std::size_t>(count);
  return count < 0 && is_temporary(errno) ? std::optional<std::size_t>(0) : std::nullopt;
}

std::optional<std::size_t> Socket::write_some(std::string_view bytes) {
  const ssize_t count = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (count >= 0) return static_cast<std::size_t>(count);
  return is_temporary(errno) ? std::optional<std::size_t>(0) : std::nullopt;
}

// An address is free again at once when a job has just ended there, but never shared with one that listens.
Socket listen_at(Address& address) {
  Socket socket = open_for(address);
  set(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.bytes.ss_family == AF_INET6) set(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (::bind(socket.descriptor(), pointer(address), address.size) != 0) fail("bind");
  if (::listen(socket.descriptor(), waiting_connections) != 0) fail("listen");
  if (::getsockname(socket.descriptor(), pointer(address), &address.size) != 0) fail("getsockname");
  return socket;
}

std::optional<Accepted> accept_from(const Socket& listener) {
  Accepted accepted;
  accepted.from.size = sizeof(accepted.from.bytes);
  accepted.socket = Socket(
      ::accept4(listener.descriptor(), pointer(accepted.from), &accepted.from.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (accepted.socket.is_open()) {
    watch_peer(accepted.socket.descriptor());
    return accepted;
  }
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) fail("accept4");
  return std::nullopt;  // none, or one that has gone already
}

bool wait_for(int descriptor, short events, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() < 0) return false;
    pollfd waiting{.fd = descriptor, .events = events, .revents = 0};
    const int status = ::poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 1'000'000)));
    if (status > 0) return true;
    if (status < 0 && errno != EINTR) return false;
  }
}

Socket connect_to(const Address& address, std::chrono::steady_clock::time_point deadline, std::string& why) {
  Socket socket = open_for(address);
  if (::connect(socket.descriptor(), pointer(address), address.size) != 0) {
    if (errno != EINPROGRESS) return why = text_of(errno), Socket();
    if (!wait_for(socket.descriptor(), POLLOUT, deadline)) return why = "no answer", Socket();
    if (const int error = error_of(socket)) return why = text_of(error), Socket();
  }
  if (met_itself(socket)) return why = text_of(ECONNREFUSED), Socket();
  watch_peer(socket.descriptor());
  return socket;
}

}  // namespace tessera::comm
