// Values of all ranks.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tessera/comm/world.hpp"

#pragma GCC visibility push(default)

namespace tessera::trainer {

// Every rank gives the same number of values; the result holds them in rank order. Collective, as World::gather().
template <typename Value>
std::vector<Value> gather_values(World& world, std::span<const Value> mine, std::string_view label) {
  static_assert(std::is_trivially_copyable_v<Value>);
  const std::vector<std::byte> bytes = world.gather(std::as_bytes(mine), label);
  std::vector<Value> result(bytes.size() / sizeof(Value));
  std::memcpy(static_cast<void*>(result.data()), bytes.data(), bytes.size());
  return result;
}
template <typename Value>
std::vector<Value> gather_value(World& world, const Value& mine, std::string_view label) {
  return gather_values(world, std::span<const Value>(&mine, 1), label);
}

}  // namespace tessera::trainer

#pragma GCC visibility pop
