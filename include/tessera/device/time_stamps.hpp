// Traces are made of time stamps, times at which streams get somewhere: a stamp is enqueued like any other work, and
// holds when all work before it had run.
//
// Thread safety: one host thread at a time takes stamps. Allocation: only on construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/base/bytes.hpp"
#include "tessera/device/device.hpp"
#include "tessera/device/stream.hpp"

#pragma GCC visibility push(default)

namespace tessera {

namespace device {
class DeviceStamps;
}

class TimeStamps {
 public:
  // Room for `count` stamps of the device's streams.
  TimeStamps(Device device, std::size_t count);
  ~TimeStamps();
  // Stamps that are enqueued are written here: they must keep their address.
  TimeStamps(const TimeStamps&) = delete;
  TimeStamps& operator=(const TimeStamps&) = delete;

  // Enqueues stamp `index`, again if it was taken before. Does not synchronise. Throws InternalError beyond `count`.
  void take(Stream& stream, std::size_t index);

  // Nanoseconds of the host's steady clock (std::chrono::steady_clock), for every stamp; 0 where none was taken. Read
  // it once the streams have been synchronised.
  const std::vector<std::int64_t>& nanoseconds();

  Bytes size() const { return Bytes(values_.size() * sizeof(std::int64_t)); }

 private:
  std::unique_ptr<device::DeviceStamps> on_device_;  // null for the CPU
  std::vector<std::int64_t> values_;
};

}  // namespace tessera

#pragma GCC visibility pop
