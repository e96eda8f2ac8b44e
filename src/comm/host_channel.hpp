// Messages between the hosts of a job: sends and receives that have begun. Memory stays as it is until they have ended:
// none can be taken back, because MPI does not cancel sends, and a connection that meets memory that is gone is broken
// for later jobs, too.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

namespace tessera::comm {

class HostChannel {
 public:
  virtual ~HostChannel() = default;  // transfers that have not ended go on
  HostChannel(const HostChannel&) = delete;
  HostChannel& operator=(const HostChannel&) = delete;

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

  // Keeps memory that transfers may still read or write until the process ends: of those that a failure has cut short.
  virtual void keep(std::shared_ptr<void> memory) = 0;

 protected:
  HostChannel() = default;
};

}  // namespace tessera::comm
