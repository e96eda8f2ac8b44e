// Bytes that go from one rank of a group to another, or to another place of its own.
#pragma once

#include "tessera/base/bytes.hpp"

#pragma GCC visibility push(default)

namespace tessera {

// `size` bytes of the rank at place `from` go to the rank at place `to`. Where they begin counts from the begin of each
// rank's own memory.
struct Transfer {
  int from = 0;
  int to = 0;
  Bytes source{};
  Bytes target{};
  Bytes size{};
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

}  // namespace tessera

#pragma GCC visibility pop
