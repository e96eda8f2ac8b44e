// Philox4x32-10: a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
// Four words from a 128-bit counter and a 64-bit key, with no state in between.
#pragma once

#include <array>
#include <cstdint>

#include "tessera/base/philox_rounds.hpp"

#pragma GCC visibility push(default)

namespace tessera {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  std::uint32_t words[4] = {counter[0], counter[1], counter[2], counter[3]};
  philox_rounds<PhiloxCounter>(words, key[0], key[1]);
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace tessera

#pragma GCC visibility pop
