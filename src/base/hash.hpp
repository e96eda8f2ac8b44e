// FNV-1a in 64 bits (Fowler, Noll and Vo): a quick hash of texts, the same in every process and on every machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

constexpr std::uint64_t fnv1a_basis = 14695981039346656037u;

// basis: another one gives another hash.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t basis = fnv1a_basis) {
  std::uint64_t hash = basis;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace tessera
