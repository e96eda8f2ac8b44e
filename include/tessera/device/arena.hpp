// One allocation that holds every buffer of a rank's runtime. Its size comes from the plan and never changes.
// On the CPU: one anonymous mapping, page-aligned, zero-filled and touched at construction, so that no page fault
// is left for the training step and residency equals size.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "tessera/base/bytes.hpp"
#include "tessera/device/device.hpp"

#pragma GCC visibility push(default)

namespace tessera {

namespace device {
class DeviceMemory;
}

class Arena {
 public:
  // The granularity of arena regions; the plan rounds with the same figure.
  static constexpr Bytes page{4096};

  // Takes exactly round_up(size, page). Throws MemoryError naming size and device. Synchronises.
  Arena(Device device, Bytes size);
  // Memory of the host for a CUDA device's copies: pinned, not zero-filled. For the CPU it is the CPU's.
  static Arena on_host_of(Device device, Bytes size);
  // For World::make_arena: memory that somebody else has mapped, zero-filled and touched. `size` is in whole pages.
  Arena(Bytes size, std::unique_ptr<device::DeviceMemory> memory);
  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;
  ~Arena();

  // round_up(size, page); throws MemoryError for what no address space holds.
  static Bytes whole_pages(Device device, Bytes size);

  Bytes size() const;
  std::byte* data();                                     // null for an arena of size 0
  std::span<std::byte> range(Bytes offset, Bytes size);  // throws InternalError when outside

 private:
  class Mapping;
  std::unique_ptr<Mapping> mapping_;
};

}  // namespace tessera

#pragma GCC visibility pop
