// Stochastic rounding for any instruction set, a block of 128 elements at a time: 16 counters, whose words lie in
// memory as elements do (kernels/rounding.hpp).
#pragma once

#include "kernels/cpu/blocks.hpp"
#include "tessera/base/philox_rounds.hpp"

namespace tessera::kernels {

inline constexpr std::size_t rounding_block = 128;

template <typename Lanes>
[[gnu::always_inline]] inline void draw_block(const RoundArguments& a, std::uint64_t block,
                                              std::uint32_t (&drawn)[rounding_block]) {
  const std::uint64_t first = block * lane_count;
  std::uint32_t words[4][lane_count];
  for (std::uint32_t lane = 0; lane < lane_count; ++lane) {
    // A block's counters differ in the lower word alone.
    std::uint32_t counter[4] = {static_cast<std::uint32_t>(first) + lane, static_cast<std::uint32_t>(first >> 32),
                                static_cast<std::uint32_t>(a.step), static_cast<std::uint32_t>(a.step >> 32)};
    philox_rounds<Lanes>(counter, a.key[0], a.key[1]);
    words[0][lane] = counter[0];
    words[1][lane] = counter[1];
    words[2][lane] = counter[2];
    words[3][lane] = counter[3];
  }
  for (std::size_t word = 0; word < 4; ++word) {
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      drawn[word * 2 * lane_count + lane] = words[word][lane] & 0xffff;
      drawn[(word * 2 + 1) * lane_count + lane] = words[word][lane] >> 16;
    }
  }
}

template <typename Lanes>
void round_lanes(const RoundArguments& a) {
  for (std::size_t at = 0; at < a.count;) {
    const std::uint64_t element = a.first + at;
    const std::size_t begin = element % rounding_block;
    const std::size_t left = a.count - at, n = left < rounding_block - begin ? left : rounding_block - begin;
    std::uint32_t drawn[rounding_block], bits[rounding_block] = {};
    draw_block<Lanes>(a, element / rounding_block, drawn);
    __builtin_memcpy(bits, a.from + at, n * sizeof(float));
    std::uint16_t rounded[rounding_block];
    for (std::size_t i = 0; i < n; ++i) {
      const bool nan = (bits[i] & 0x7fffffffu) > 0x7f800000u;
      rounded[i] = static_cast<std::uint16_t>((nan ? bits[i] | 0x400000u : bits[i] + drawn[begin + i]) >> 16);
    }
    __builtin_memcpy(a.to + at, rounded, n * sizeof(std::uint16_t));
    at += n;
  }
}

}  // namespace tessera::kernels
