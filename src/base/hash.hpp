// FNV-1a in 64 bits (Fowler, Noll and Vo): a quick hash of texts, the same in every process and on every machine.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/base/philox.hpp"

namespace tessera {

constexpr std::uint64_t fnv1a_basis = 14695981039346656037u;

// basis: another one gives another hash.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t basis = fnv1a_basis) {
  std::uint64_t hash = basis;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

// The key of random values that belong to a tensor.
constexpr PhiloxKey key_of(std::uint64_t seed, std::string_view name) {
  const std::uint64_t mixed = seed * 0x9E3779B97F4A7C15ull ^ fnv1a(name);
  return {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)};
}

}  // namespace tessera
