// How the processes of a job come to know each other before they share anything: values of all ranks at once, over
// whatever their launcher offers (MPI, or the rendezvous at rank 0).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/pinned.hpp"

namespace tessera::comm {

// Messages between the hosts of a job: sends and receives that have begun. Memory stays as it is until they have ended:
// none can be taken back, because MPI does not cancel sends, and a connection that meets memory that is gone is broken
// for later jobs, too.
class HostChannel : Pinned {
 public:
  virtual ~HostChannel() = default;  // transfers that have not ended go on

  using Transfer = std::size_t;
  virtual Transfer send(int to, int tag, std::span<const std::byte> bytes) = 0;
  virtual Transfer receive(int from, int tag, std::span<std::byte> bytes) = 0;
  virtual bool ended(Transfer transfer) = 0;  // true once; the transfer is forgotten then

  struct Arrival {
    int from;
    std::size_t bytes;
  };
  // A message with this tag that could be received now.
  virtual std::optional<Arrival> probe(int tag) = 0;
};

class Introduction : Pinned {
 public:
  virtual ~Introduction() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // World::backend_name() says this of ranks that met so.
  virtual std::string_view backend_name() const = 0;

  // Every rank gives the same number of bytes; the result holds them in rank order. Blocks. Throws CommunicationError
  // when the others do not come in time.
  virtual std::vector<std::byte> all_gather(std::span<const std::byte> mine, std::chrono::milliseconds timeout) = 0;

  // Messages between hosts, of one job, kept apart from those of others. Collective. Null where nothing carries them.
  virtual std::unique_ptr<HostChannel> make_channel(std::chrono::milliseconds /*timeout*/) { return nullptr; }

  // The job has failed: some rank may be gone, and nothing waits for it from now on.
  virtual void abandon() {}
};

// Processes that are started together do not come together: the last one may still be loading.
constexpr std::chrono::milliseconds least_start_timeout{60'000};
inline std::chrono::milliseconds start_timeout(std::chrono::milliseconds timeout) {
  return std::max(timeout, least_start_timeout);
}

// Reads values that stand one after the other.
template <typename Value>
std::vector<Value> values_of(const std::vector<std::byte>& bytes) {
  std::vector<Value> values(bytes.size() / sizeof(Value));
  std::memcpy(static_cast<void*>(values.data()), bytes.data(), bytes.size());
  return values;
}
// A value of each rank, in rank order.
template <typename Value>
std::vector<Value> all_values(Introduction& introduction, const Value& mine, std::chrono::milliseconds timeout) {
  return values_of<Value>(introduction.all_gather(std::as_bytes(std::span(&mine, 1)), timeout));
}

// A text of each rank, in rank order.
inline std::vector<std::string> all_texts(Introduction& introduction, std::string mine,
                                          std::chrono::milliseconds timeout) {
  const std::vector<std::size_t> sizes = all_values(introduction, mine.size(), timeout);
  mine.resize(std::max<std::size_t>(*std::max_element(sizes.begin(), sizes.end()), 1));
  const std::vector<std::byte> bytes = introduction.all_gather(std::as_bytes(std::span(mine)), timeout);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()) + rank * mine.size(), sizes[rank]);
  }
  return texts;
}

}  // namespace tessera::comm
