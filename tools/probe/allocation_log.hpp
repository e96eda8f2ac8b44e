// Where the interposed functions write down what they see. Lock-free, and safe before main() and in any thread: nothing
// here allocates or needs construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "probe/memory_probe.hpp"

namespace tessera::probe {

// One allocation was made: tells a running AllocationWatch.
void note_allocation() noexcept;

// A block of `bytes` came to the heap or left it.
void note_block(std::size_t bytes) noexcept;
void note_free(std::size_t bytes) noexcept;

// A Site is a call stack from which a watch saw memory taken.
inline constexpr std::size_t most_sites = 8;
inline constexpr std::size_t most_frames = 16;
struct Site {
  std::array<void*, most_frames> frames;
  int depth;
};

bool start_watching();  // false when somebody watches already
void stop_watching();
std::uint64_t watched_allocations();
std::span<const Site> watched_sites();  // after stop_watching()

}  // namespace tessera::probe
