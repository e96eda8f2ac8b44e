// Gathers what every rank says, by rank, over the host (World::gather): values of one type, and texts of any length.
// Collective; both block.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/world.hpp"

namespace tessera {

template <typename Value>
std::vector<Value> gather_values(World& world, const Value& mine, std::string_view label) {
  const std::vector<std::byte> all = world.gather(std::as_bytes(std::span(&mine, 1)), label);
  std::vector<Value> values(static_cast<std::size_t>(world.size()));
  std::memcpy(values.data(), all.data(), all.size());
  return values;
}

// Lengths travel first.
std::vector<std::string> gather_texts(World& world, std::string_view mine, std::string_view label);

}  // namespace tessera
