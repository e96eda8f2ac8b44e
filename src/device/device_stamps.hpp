// How the streams of a device other than the CPU are stamped with times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tessera/device/device.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::device {

class DeviceStamps {
 public:
  virtual ~DeviceStamps() = default;
  virtual void take(Stream& stream, std::size_t index) = 0;  // enqueues
  // Nanoseconds of the host's steady clock; what was not taken is left alone. The streams have been synchronised.
  virtual void read(std::span<std::int64_t> values) const = 0;
};

std::unique_ptr<DeviceStamps> make_cuda_stamps(Device device, std::size_t count);

}  // namespace tessera::device
