// What a rank does in a collective whose ranks read each other's memory: threads of a process, or processes of a host.
// In every stage the ranges that a rank writes in its own memory are read by no peer; that is why one meeting before
// and one after suffice (all-reduce: one more between its two stages).
//
// A Reader is a rank that has met its peers: place(), size(), data_of(place, segment) of each of them, scratch() with
// room for a pointer per rank, and copy(to, from, bytes) and sum(RankedSum), which move.
#pragma once

#include <cstddef>
#include <span>

#include "comm/slices.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {

// Every rank's contribution, by place; this rank's from its own data.
template <typename Reader, typename Address>
std::span<const void* const> contributions(Reader& reader, const void* own, const Address& address) {
  const std::span<const void*> pointers = reader.scratch();
  for (int place = 0; place < reader.size(); ++place) {
    pointers[static_cast<std::size_t>(place)] = place == reader.place() ? own : address(place);
  }
  return pointers;
}

template <typename Reader>
void gather_directly(Reader& reader, const AllGather& operation, std::size_t segment) {
  const std::size_t shard = operation.shard.count();
  if (shard == 0) return;
  for_each_peer(reader.place(), reader.size(), [&](int peer) {
    const std::size_t offset = static_cast<std::size_t>(peer) * shard;
    reader.copy(operation.data + offset, reader.data_of(peer, segment) + offset, shard);
  });
}

template <typename Reader>
void scatter_directly(Reader& reader, const ReduceScatter& operation, std::size_t segment) {
  if (operation.shard_elements == 0) return;
  const std::size_t shard = (operation.shard_elements * size_of(operation.wire)).count();
  const std::size_t offset = static_cast<std::size_t>(reader.place()) * shard;
  const auto of = [&](int place) { return reader.data_of(place, segment) + offset; };
  reader.sum({.contributions = contributions(reader, operation.data + offset, of),
              .type = operation.wire,
              .result = operation.result,
              .count = operation.shard_elements,
              .accumulate = operation.accumulate,
              .divisor = operation.divisor});
}

// First each rank sums its slice into its own memory …
template <typename Reader>
void sum_own_slice(Reader& reader, const AllReduce& operation) {
  const Slice own = slice_of(operation.elements, reader.place(), reader.size());
  if (own.size() == 0) return;
  const auto of = [&](int place) { return reader.data_of(place, 0) + own.begin * sizeof(float); };
  reader.sum({.contributions = contributions(reader, operation.data + own.begin, of),
              .result = operation.data + own.begin,
              .count = own.size(),
              .divisor = operation.divisor});
}

// … then it copies the other slices from those who summed them.
template <typename Reader>
void copy_other_slices(Reader& reader, const AllReduce& operation) {
  for_each_peer(reader.place(), reader.size(), [&](int peer) {
    const Slice slice = slice_of(operation.elements, peer, reader.size());
    if (slice.size() == 0) return;
    auto* const to = reinterpret_cast<std::byte*>(operation.data + slice.begin);
    reader.copy(to, reader.data_of(peer, 0) + slice.begin * sizeof(float), slice.size() * sizeof(float));
  });
}

template <typename Reader>
void copy_from_root(Reader& reader, const Broadcast& operation) {
  if (reader.place() == operation.root || operation.size == Bytes(0)) return;
  reader.copy(operation.data, reader.data_of(operation.root, 0), operation.size.count());
}

}  // namespace tessera::comm
