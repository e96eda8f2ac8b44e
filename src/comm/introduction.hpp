// How the processes of a job come to know each other before they share anything: values of all ranks at once, over
// whatever their launcher offers (MPI, or the rendezvous at rank 0).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/host_channel.hpp"

namespace tessera::comm {

class Introduction {
 public:
  virtual ~Introduction() = default;
  Introduction(const Introduction&) = delete;
  Introduction& operator=(const Introduction&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // What World::backend_name() says of ranks that met so.
  virtual std::string_view backend_name() const = 0;

  // Every rank gives the same number of bytes; the result holds them in rank order. Blocks. Throws CommunicationError
  // when the others do not come in time.
  virtual std::vector<std::byte> all_gather(std::span<const std::byte> mine, std::chrono::milliseconds timeout) = 0;

  // Messages between hosts, of one job, kept apart from those of others. Collective. Null where nothing carries them.
  virtual std::unique_ptr<HostChannel> make_channel(std::chrono::milliseconds /*timeout*/) { return nullptr; }

 protected:
  Introduction() = default;
};

// Processes that are started together do not come together: the last one may still be loading.
constexpr std::chrono::milliseconds least_start_timeout{60'000};
inline std::chrono::milliseconds start_timeout(std::chrono::milliseconds timeout) {
  return std::max(timeout, least_start_timeout);
}

// A value of each rank, in rank order.
template <typename Value>
std::vector<Value> all_values(Introduction& introduction, const Value& mine, std::chrono::milliseconds timeout) {
  const std::vector<std::byte> bytes = introduction.all_gather(std::as_bytes(std::span(&mine, 1)), timeout);
  std::vector<Value> values(bytes.size() / sizeof(Value));
  std::memcpy(static_cast<void*>(values.data()), bytes.data(), bytes.size());
  return values;
}

}  // namespace tessera::comm
