// The probe measures what this process really took from the system, from outside the library: the allocators of the
// executable that links it are interposed (malloc and its family, and with it operator new; mmap, munmap, mremap), and
// residency is asked of the kernel. Nothing here uses the plan's, the arena's or any other counter of the runtime.
//
// Thread safety: everything may be called from any thread. The interposed functions allocate nothing of their own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tessera/base/bytes.hpp"

namespace tessera::probe {

// False where the allocators cannot be interposed (a sanitizer has done so already, or the C library is not glibc):
// then every figure is 0.
bool available();

// Resident bytes of `range` that lie in a mapping which the interposer saw this process take and not give back.
Bytes measured(std::span<const std::byte> range);

// The size of the mapping that contains `address`, as it was asked for; 0 when the interposer saw none.
Bytes mapping_of(const void* address);

struct Mappings {
  std::size_t count;   // live
  Bytes size;          // of these
  std::size_t unseen;  // taken when the probe's table was full: then all other figures are too small
};
Mappings mappings();

// The live figures of one thread are what it allocated less what it freed: they may be negative.
struct Heap {
  std::int64_t live_bytes;  // as the allocator rounded them, which need not be the same each time
  std::int64_t live_blocks;
  std::uint64_t allocations;  // so far; one for each call that returned a block, or made one larger or smaller
};
Heap heap();  // of all threads
Heap heap_of_this_thread();

// How many bytes of heap the calling thread has come to hold since construction.
class HeapGrowth {
 public:
  HeapGrowth() : before_(heap_of_this_thread().live_bytes) {}
  Bytes bytes() const {
    const std::int64_t growth = heap_of_this_thread().live_bytes - before_;
    return Bytes(growth > 0 ? static_cast<std::uint64_t>(growth) : 0);
  }

 private:
  std::int64_t before_;
};

// Counts every allocation (heap or mapping) of any thread while it lives, and remembers where the first few came from.
// At most one at a time: a second is a UsageError.
class AllocationWatch {
 public:
  AllocationWatch();
  ~AllocationWatch();
  AllocationWatch(const AllocationWatch&) = delete;
  AllocationWatch& operator=(const AllocationWatch&) = delete;

  std::uint64_t count() const;
  // The count and the first call sites, one frame a line, for people. Ends the counting.
  std::string describe();

 private:
  void stop();
  std::uint64_t final_count_ = 0;
  bool running_ = true;
};

}  // namespace tessera::probe
