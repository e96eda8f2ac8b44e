// What a rank does in a collective whose ranks meet: threads of a process, processes of one host or several, ranks on a
// control channel. Directly they read each other's memory; staged, in rounds, each first puts what the others need into
// an area of its own, from which they take it once all have met. Rounds cut data between elements, so sums have the
// same bits either way.
//
// A Meeting is one rank's part of one call. All have place(), size(), scratch() with room for a pointer per rank,
// copy(to, from, bytes) and sum(RankedSum), which move, and meet(data, move): peers may read from `data` on while
// `move` runs, and are finished with it afterwards. For the direct way: data_of(place, segment) of each rank, and
// regroup(), where all have moved. For the staged way: round_bytes, staging(place, round), and regroup(Staged), after
// which every rank's area of that round is there; two rounds that follow each other use two areas. Where both ways are,
// is_direct() says which.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "comm/signature.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {

// ---- how ranks divide work ----

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

// A part of `whole` things for each of several rounds of at most `most`.
struct Round {
  std::size_t index;
  std::size_t begin;
  std::size_t count;
};
template <typename Function>
void for_each_round(std::size_t whole, std::size_t most, Function&& function) {
  for (Round round{0, 0, 0}; round.begin < whole; round.begin += most, ++round.index) {
    round.count = std::min(most, whole - round.begin);
    function(round);
  }
}

// What a round has put into a rank's area: `bytes` for all, or for the rank at place p those at p * stride.
struct Staged {
  std::size_t bytes = 0;
  std::size_t stride = 0;
  std::size_t round = 0;
};

// ---- sums ----

// Every rank's contribution, by place; this rank's from its own data.
template <typename Meeting, typename Address>
std::span<const void* const> contributions(const Meeting& meeting, const void* own, const Address& address) {
  const std::span<const void*> pointers = meeting.scratch();
  for (int place = 0; place < meeting.size(); ++place) {
    pointers[static_cast<std::size_t>(place)] = place == meeting.place() ? own : address(place);
  }
  return pointers;
}

inline kernels::RankedSum sum_of(const ReduceScatter& operation, std::span<const void* const> all, std::size_t begin,
                                 std::size_t count) {
  return {.contributions = all,
          .type = operation.wire,
          .result = operation.result + begin,
          .count = count,
          .accumulate = operation.accumulate,
          .divisor = operation.divisor};
}

inline kernels::RankedSum sum_of(const AllReduce& operation, std::span<const void* const> all, std::size_t begin,
                                 std::size_t count) {
  return {.contributions = all, .result = operation.data + begin, .count = count, .divisor = operation.divisor};
}

// ---- directly ----
//
// In every stage the ranges that a rank writes in its own memory are read by no peer; that is why one meeting before
// and one after suffice (all-reduce: one more between its two stages).

template <typename Meeting>
void gather_directly(const Meeting& meeting, const AllGather& operation, std::size_t segment) {
  const std::size_t shard = operation.shard.count();
  if (shard == 0) return;
  for_each_peer(meeting.place(), meeting.size(), [&](int peer) {
    const std::size_t offset = static_cast<std::size_t>(peer) * shard;
    meeting.copy(operation.data + offset, meeting.data_of(peer, segment) + offset, shard);
  });
}

template <typename Meeting>
void scatter_directly(const Meeting& meeting, const ReduceScatter& operation, std::size_t segment) {
  if (operation.shard_elements == 0) return;
  const std::size_t shard = (operation.shard_elements * size_of(operation.wire)).count();
  const std::size_t offset = static_cast<std::size_t>(meeting.place()) * shard;
  const auto of = [&](int place) { return meeting.data_of(place, segment) + offset; };
  const auto all = contributions(meeting, operation.data + offset, of);
  meeting.sum(sum_of(operation, all, 0, operation.shard_elements));
}

// First each rank sums its slice into its own memory, then it copies the other slices from those who summed them.
template <typename Meeting>
void reduce_directly(const Meeting& meeting, const AllReduce& operation) {
  const Slice own = slice_of(operation.elements, meeting.place(), meeting.size());
  if (own.size() > 0) {
    const auto of = [&](int place) { return meeting.data_of(place, 0) + own.begin * sizeof(float); };
    meeting.sum(sum_of(operation, contributions(meeting, operation.data + own.begin, of), own.begin, own.size()));
  }
  meeting.regroup();
  for_each_peer(meeting.place(), meeting.size(), [&](int peer) {
    const Slice slice = slice_of(operation.elements, peer, meeting.size());
    if (slice.size() == 0) return;
    auto* const to = reinterpret_cast<std::byte*>(operation.data + slice.begin);
    meeting.copy(to, meeting.data_of(peer, 0) + slice.begin * sizeof(float), slice.size() * sizeof(float));
  });
}

template <typename Meeting>
void broadcast_directly(const Meeting& meeting, const Broadcast& operation) {
  if (meeting.place() == operation.root || operation.size == Bytes(0)) return;
  meeting.copy(operation.data, meeting.data_of(operation.root, 0), operation.size.count());
}

// ---- in rounds ----
//
// Rounds of all segments of a call count on from `first_round`. Each returns the number of its own.

template <typename Meeting>
std::size_t gather_staged(const Meeting& meeting, const AllGather& operation, std::size_t first_round) {
  const std::size_t shard = operation.shard.count();
  const std::size_t own = static_cast<std::size_t>(meeting.place()) * shard;
  for_each_round(shard, Meeting::round_bytes, [&](const Round& round) {
    const std::size_t area = first_round + round.index;
    meeting.copy(meeting.staging(meeting.place(), area), operation.data + own + round.begin, round.count);
    meeting.regroup({.bytes = round.count, .round = area});
    for_each_peer(meeting.place(), meeting.size(), [&](int peer) {
      std::byte* const to = operation.data + static_cast<std::size_t>(peer) * shard + round.begin;
      meeting.copy(to, meeting.staging(peer, area), round.count);
    });
  });
  return (shard + Meeting::round_bytes - 1) / Meeting::round_bytes;
}

// An area holds a piece for each rank, one after the other.
template <typename Meeting>
std::size_t scatter_staged(const Meeting& meeting, const ReduceScatter& operation, std::size_t first_round) {
  constexpr std::size_t lanes = 32;  // that kernels add at once
  const std::size_t element = size_of(operation.wire).count();
  const std::size_t room = Meeting::round_bytes / static_cast<std::size_t>(meeting.size()) / element;
  const std::size_t most = room < lanes ? std::max<std::size_t>(room, 1) : room / lanes * lanes;
  const std::size_t shard = operation.shard_elements * element;
  const std::size_t stride = most * element;
  const auto me = static_cast<std::size_t>(meeting.place());
  for_each_round(operation.shard_elements, most, [&](const Round& round) {
    const std::size_t area = first_round + round.index;
    const std::size_t begin = round.begin * element;
    const std::size_t bytes = round.count * element;
    for_each_peer(meeting.place(), meeting.size(), [&](int peer) {
      const auto to = static_cast<std::size_t>(peer);
      meeting.copy(meeting.staging(meeting.place(), area) + to * stride, operation.data + to * shard + begin, bytes);
    });
    meeting.regroup({.bytes = bytes, .stride = stride, .round = area});
    const auto of = [&](int place) { return meeting.staging(place, area) + me * stride; };
    const auto all = contributions(meeting, operation.data + me * shard + begin, of);
    meeting.sum(sum_of(operation, all, round.begin, round.count));
  });
  return (operation.shard_elements + most - 1) / most;
}

// Every rank sums everything: what travels is the same, and no second exchange is needed.
template <typename Meeting>
void reduce_staged(const Meeting& meeting, const AllReduce& operation) {
  for_each_round(operation.elements, Meeting::round_bytes / sizeof(float), [&](const Round& round) {
    const auto* const own = reinterpret_cast<const std::byte*>(operation.data + round.begin);
    meeting.copy(meeting.staging(meeting.place(), round.index), own, round.count * sizeof(float));
    meeting.regroup({.bytes = round.count * sizeof(float), .round = round.index});
    const auto of = [&](int place) { return meeting.staging(place, round.index); };
    meeting.sum(sum_of(operation, contributions(meeting, own, of), round.begin, round.count));
  });
}

template <typename Meeting>
void broadcast_staged(const Meeting& meeting, const Broadcast& operation) {
  const bool root = meeting.place() == operation.root;
  for_each_round(operation.size.count(), Meeting::round_bytes, [&](const Round& round) {
    std::byte* const data = operation.data + round.begin;
    if (root) meeting.copy(meeting.staging(operation.root, round.index), data, round.count);
    meeting.regroup({.bytes = root ? round.count : 0, .round = round.index});
    if (!root) meeting.copy(data, meeting.staging(operation.root, round.index), round.count);
  });
}

// ---- one rank's part of each collective ----

template <typename Meeting>
concept ReadsPeers = requires(const Meeting& meeting) {
  meeting.data_of(0, std::size_t{0});
};
template <typename Meeting>
concept Stages = requires(const Meeting& meeting) {
  meeting.staging(0, std::size_t{0});
};

// Meets the peers, and then moves in the way that there is.
template <typename Meeting, typename Direct, typename InRounds>
void meet(const Meeting& meeting, const std::byte* data, const Direct& direct, const InRounds& in_rounds) {
  meeting.meet(data, [&] {
    if constexpr (!Stages<Meeting>) {
      direct(meeting);
    } else if constexpr (!ReadsPeers<Meeting>) {
      in_rounds(meeting);
    } else {
      meeting.is_direct() ? direct(meeting) : in_rounds(meeting);
    }
  });
}

template <typename Meeting, typename Operation, typename Direct, typename InRounds>
void meet_in_segments(const Meeting& meeting, std::span<const Operation> segments, const Direct& direct,
                      const InRounds& in_rounds) {
  meet(
      meeting, segments.front().data,
      [&](const auto& met) {
        for (std::size_t segment = 0; segment < segments.size(); ++segment) direct(met, segments[segment], segment);
      },
      [&](const auto& met) {
        std::size_t rounds = 0;
        for (const Operation& segment : segments) rounds += in_rounds(met, segment, rounds);
      });
}

template <typename Meeting>
void run_collective(const Meeting& meeting, std::span<const AllGather> segments) {
  meet_in_segments(
      meeting, segments, [](const auto& met, const auto&... call) { gather_directly(met, call...); },
      [](const auto& met, const auto&... call) { return gather_staged(met, call...); });
}

template <typename Meeting>
void run_collective(const Meeting& meeting, std::span<const ReduceScatter> segments) {
  meet_in_segments(
      meeting, segments, [](const auto& met, const auto&... call) { scatter_directly(met, call...); },
      [](const auto& met, const auto&... call) { return scatter_staged(met, call...); });
}

template <typename Meeting>
void run_collective(const Meeting& meeting, const AllReduce& operation) {
  meet(
      meeting, reinterpret_cast<const std::byte*>(operation.data),
      [&](const auto& met) { reduce_directly(met, operation); },
      [&](const auto& met) { reduce_staged(met, operation); });
}

template <typename Meeting>
void run_collective(const Meeting& meeting, const Broadcast& operation) {
  meet(
      meeting, operation.data, [&](const auto& met) { broadcast_directly(met, operation); },
      [&](const auto& met) { broadcast_staged(met, operation); });
}

template <typename Meeting>
void run_collective(const Meeting& meeting, const Barrier&) {
  meeting.meet(nullptr, [] {});
}

}  // namespace tessera::comm
