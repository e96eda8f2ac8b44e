// Gathers what every rank says, by rank, over the host (World::gather): values of one type, and texts of any length.
// Collective; both block.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/introduction.hpp"
#include "tessera/comm/world.hpp"

namespace tessera {

template <typename Value>
std::vector<Value> gather_values(World& world, const Value& mine, std::string_view label) {
  return comm::values_of<Value>(world.gather(std::as_bytes(std::span(&mine, 1)), label));
}

// Lengths travel first.
std::vector<std::string> gather_texts(World& world, std::string_view mine, std::string_view label);

}  // namespace tessera
