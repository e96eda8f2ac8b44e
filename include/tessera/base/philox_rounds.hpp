// The rounds of Philox4x32 (philox.hpp) for any compiler and instruction set: includes nothing that has code.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TESSERA_PHILOX_DEVICE __host__ __device__
#else
#define TESSERA_PHILOX_DEVICE
#endif

#pragma GCC visibility push(default)

namespace tessera {

// The counter becomes four random words. Calls instead of a loop: compilers then vectorise over several counters.
// `Set`: a type of the translation unit's own where it is compiled for other instructions than the rest, so that no
// function is shared with that.
template <typename Set, int rounds = 10>
[[gnu::always_inline]] TESSERA_PHILOX_DEVICE inline void philox_rounds(std::uint32_t (&c)[4], std::uint32_t key0,
                                                                       std::uint32_t key1) {
  if constexpr (rounds > 0) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c[2];
    c[0] = static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ key0;
    c[1] = static_cast<std::uint32_t>(b);
    c[2] = static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ key1;
    c[3] = static_cast<std::uint32_t>(a);
    philox_rounds<Set, rounds - 1>(c, key0 + 0x9E3779B9, key1 + 0xBB67AE85);
  }
}

}  // namespace tessera

#pragma GCC visibility pop
