// The probe measures what this process really took from the system, from outside the library: mmap and munmap are
// interposed in the executable that links it, and residency is asked of the kernel. Nothing here uses the plan's, the
// arena's or any other counter of the runtime.
//
// Thread safety: everything may be called from any thread. The interposed functions allocate nothing of their own.
#pragma once

#include <cstddef>
#include <span>

#include "tessera/base/bytes.hpp"

namespace tessera::probe {

// False where mmap cannot be interposed, because a sanitizer has done so already: then every figure is 0.
bool available();

// Resident bytes of `range` that lie in a mapping which the interposer saw this process take and not give back.
Bytes measured(std::span<const std::byte> range);

// The size of the mapping that contains `address`, in whole pages; 0 when the interposer saw none.
Bytes mapping_of(const void* address);

// Bytes that the file which is mapped there takes of its file system, no more than its size; 0 where the interposer saw
// no mapping of a file, which must still be open under the descriptor that it was mapped with.
Bytes stored_at(const void* address);

struct Mappings {
  std::size_t count;  // live
  Bytes size;         // of these
  std::size_t taken;  // so far
};
Mappings mappings();

}  // namespace tessera::probe
