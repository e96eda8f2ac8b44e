// One allocation on a device, given back on destruction.
#pragma once

#include <cstddef>
#include <memory>

#include "tessera/base/bytes.hpp"
#include "tessera/device/device.hpp"

namespace tessera::device {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::byte* data() = 0;
};

// `size` > 0, a multiple of Arena::page. Zero-filled. Throws MemoryError.
std::unique_ptr<DeviceMemory> map_cpu_memory(Bytes size);
std::unique_ptr<DeviceMemory> map_cuda_memory(Device device, Bytes size);
// Host memory that the device copies from and to without the processor's help. Not zero-filled.
std::unique_ptr<DeviceMemory> map_pinned_memory(Device device, Bytes size);

}  // namespace tessera::device
