// Sockets of the operating system, and bytes in and out of frames. Reading never goes beyond what came.
#include "comm/rendezvous/wire.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include "tessera/base/error.hpp"

namespace tessera::comm {

// ---- sockets ----

namespace {

constexpr int waiting_connections = 1024;  // that the system keeps before they are accepted

[[noreturn]] void fail(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

std::string text_of(int error) { return std::generic_category().message(error); }

void set(int descriptor, int level, int name, int value) {
  static_cast<void>(::setsockopt(descriptor, level, name, &value, sizeof(value)));
}

constexpr std::chrono::milliseconds least_silence{30'000};

// A host that has gone without a word is noticed after about so long, of which the system knows whole seconds up to
// nine hours. Keep-alive asks it where nothing is said.
void watch_peer(int descriptor, std::chrono::milliseconds silence) {
  constexpr int questions = 4;
  const auto seconds = static_cast<int>(std::min<std::int64_t>((silence.count() + 999) / 1000, 32'000));
  const int between = std::max(1, seconds / (questions + 2));
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, seconds - questions * between);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, between);
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, questions);
  set(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000);
  set(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
}

bool is_temporary(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

const sockaddr* pointer(const Address& address) { return reinterpret_cast<const sockaddr*>(&address.bytes); }
sockaddr* pointer(Address& address) { return reinterpret_cast<sockaddr*>(&address.bytes); }

Socket open_for(const Address& address) {
  return Socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
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

std::string numbers_of(const Address& address) {
  std::array<char, NI_MAXHOST> text{};
  const int status =
      ::getnameinfo(pointer(address), address.size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return status == 0 ? text.data() : "";
}

// Returns addresses of interfaces that are up, without those that only this host or this link knows; IPv4 first.
std::vector<Address> interface_addresses() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(all, ::freeifaddrs);
  std::vector<Address> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family || (each->ifa_flags & IFF_UP) == 0) continue;
      Address address;
      address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      std::memcpy(&address.bytes, each->ifa_addr, address.size);
      const bool of_link =
          family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address.bytes).sin6_addr);
      if (!address.is_loopback() && !of_link) addresses.push_back(address);
    }
  }
  return addresses;
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

std::string to_string(const Address& address) { return to_string(Endpoint{numbers_of(address), address.port()}); }

std::vector<Address> addresses_of(const Endpoint& endpoint, std::string& why) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int status = ::getaddrinfo(endpoint.host.c_str(), fmt::to_string(endpoint.port).c_str(), &wanted, &list);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  if (status != 0) return why = fmt::format("it has no address: {}", ::gai_strerror(status)), std::vector<Address>();
  std::vector<Address> addresses;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    Address address;
    std::memcpy(&address.bytes, each->ai_addr, each->ai_addrlen);
    address.size = each->ai_addrlen;
    addresses.push_back(address);
  }
  if (addresses.empty()) why = "it has no address of IPv4 or IPv6";
  return addresses;
}

std::vector<Address> resolve(const Endpoint& endpoint) {
  std::string why;
  std::vector<Address> addresses = addresses_of(endpoint, why);
  if (!addresses.empty()) return addresses;
  throw UsageError(
      fmt::format("the ranks cannot meet at {} ({}): MASTER_ADDR must name rank 0's host", to_string(endpoint), why));
}

std::string reachable_address() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string why;
  const std::vector<Address> named = addresses_of({.host = name.data(), .port = 0}, why);
  const std::vector<Address> own = interface_addresses();
  const auto has_name = [&](const Address& each) {
    return std::any_of(named.begin(), named.end(),
                       [&](const Address& other) { return numbers_of(other) == numbers_of(each); });
  };
  const auto found = std::find_if(own.begin(), own.end(), has_name);
  if (found != own.end()) return numbers_of(*found);
  if (!own.empty()) return numbers_of(own.front());
  throw UnavailableError("this host has no network interface beside the loopback one: set MASTER_ADDR to its address");
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
  if (!socket.is_open()) fail("socket");
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
    watch_peer(accepted.socket.descriptor(), least_silence);
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
  if (!socket.is_open()) return why = text_of(errno), Socket();
  if (::connect(socket.descriptor(), pointer(address), address.size) != 0) {
    if (errno != EINPROGRESS) return why = text_of(errno), Socket();
    if (!wait_for(socket.descriptor(), POLLOUT, deadline)) return why = "no answer", Socket();
    if (const int error = error_of(socket)) return why = text_of(error), Socket();
  }
  if (met_itself(socket)) return why = text_of(ECONNREFUSED), Socket();
  watch_peer(socket.descriptor(), least_silence);
  return socket;
}

Wake::Wake() : descriptor_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (descriptor_ < 0) fail("eventfd");
}
Wake::~Wake() { ::close(descriptor_); }

void Wake::wake() noexcept { static_cast<void>(::eventfd_write(descriptor_, 1)); }
void Wake::clear() noexcept {
  eventfd_t count = 0;
  static_cast<void>(::eventfd_read(descriptor_, &count));
}

// ---- frames ----

namespace {

constexpr std::size_t head_bytes = sizeof(std::uint32_t) + sizeof(std::uint8_t);

}  // namespace

void FrameReader::feed(std::string_view bytes) {
  bytes_.erase(0, begin_);
  begin_ = 0;
  bytes_.append(bytes);
}

std::optional<Frame> FrameReader::next() {
  const std::string_view there = std::string_view(bytes_).substr(begin_);
  if (there.size() < head_bytes) return std::nullopt;
  FieldReader head(there.substr(0, head_bytes));
  const auto size = head.number<std::uint32_t>();
  const auto kind = head.number<std::uint8_t>();
  if (kind == 0 || kind > last_frame_kind) throw DataError(fmt::format("no message has the kind {}", kind));
  if (size > most_.count()) {
    throw DataError(fmt::format("a message of {} bytes is above the limit of {}", size, most_.count()));
  }
  if (there.size() - head_bytes < size) return std::nullopt;
  begin_ += head_bytes + size;
  return Frame{.kind = static_cast<FrameKind>(kind), .payload = there.substr(head_bytes, size)};
}

void append_frame(std::string& out, FrameKind kind, std::string_view payload) {
  FieldWriter writer(out);
  writer.number(static_cast<std::uint32_t>(payload.size()));
  writer.number(static_cast<std::uint8_t>(kind));
  writer.raw(payload);
}

// ---- connections ----

namespace {

// At a time, so that one connection that never stops does not keep the others waiting.
constexpr int most_reads = 8;
constexpr std::size_t read_bytes = 32 << 10;

}  // namespace

void Connection::admit(Bytes most_payload, std::chrono::milliseconds silence) {
  reader_.allow(most_payload);
  watch_peer(descriptor(), std::max(silence, least_silence));
}

bool Connection::receive() {
  std::array<char, read_bytes> bytes;
  for (int turn = 0; turn < most_reads; ++turn) {
    const std::optional<std::size_t> count = socket_.read_some(bytes);
    if (!count) return false;
    reader_.feed({bytes.data(), *count});
    if (*count < bytes.size()) return true;
  }
  return true;
}

void Connection::flush_until(std::chrono::steady_clock::time_point deadline) {
  while (flush() && has_to_send() && wait_for(descriptor(), POLLOUT, deadline)) {
  }
}

bool Connection::flush() {
  while (has_to_send()) {
    const std::optional<std::size_t> count = socket_.write_some(std::string_view(out_).substr(sent_));
    if (!count) return false;
    if (*count == 0) return true;
    sent_ += *count;
  }
  out_.clear();
  sent_ = 0;
  return true;
}

}  // namespace tessera::comm
