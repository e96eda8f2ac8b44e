// How ranks divide work: elements that divide by nothing, and the order in which each rank looks at its peers.
#pragma once

#include <algorithm>
#include <cstddef>

namespace tessera::comm {

// A half-open range of elements.
struct Slice {
  std::size_t begin;
  std::size_t end;
  std::size_t size() const { return end - begin; }
};

// Rank r's share of `count` elements; sizes differ by one at most.
inline Slice slice_of(std::size_t count, int rank, int ranks) {
  const auto parts = static_cast<std::size_t>(ranks);
  const auto part = static_cast<std::size_t>(rank);
  const std::size_t least = count / parts;
  const std::size_t larger = count % parts;  // the first so many slices have one element more
  const std::size_t begin = part * least + std::min(part, larger);
  return {.begin = begin, .end = begin + least + (part < larger ? 1 : 0)};
}

// Peers after this rank, in cyclic order, so that not all ranks read the same one at a time.
template <typename Function>
void for_each_peer(int rank, int ranks, Function&& function) {
  for (int step = 1; step < ranks; ++step) function((rank + step) % ranks);
}

}  // namespace tessera::comm
