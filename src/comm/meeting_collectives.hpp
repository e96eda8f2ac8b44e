// Collectives whose ranks meet are written here once: ranks that are threads of a process, processes of one host or
// several, or on a control channel. Directly they read each other's memory; staged, in rounds, each first puts what the
// others need into an area of its own, from which they take it once all have met. Rounds cut data between elements, so
// sums have the same bits either way.
//
// A Meeting is one rank's part of one call. All have place(), size(), scratch() with room for a pointer per rank,
// copy(to, from, bytes) and sum(RankedSum), which move, and meet(data, move): peers may read from `data` on while
// `move` runs, and are finished with it afterwards. For the direct way: data_of(place, segment) of each rank, and
// regroup(), where all have moved. For the staged way: round_bytes, staging(place, round), and regroup(Staged), after
// which every rank's area of that round is there; two rounds that follow each other use two areas. Where both ways are,
// is_direct() says which.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "comm/signature.hpp"
#include "tessera/base/error.hpp"
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

// A part of `whole` things for each of several rounds of at most `most`. How many rounds that takes.
struct Round {
  std::size_t index;
  std::size_t begin;
  std::size_t count;
};
template <typename Function>
std::size_t for_each_round(std::size_t whole, std::size_t most, Function&& function) {
  Round round{0, 0, 0};
  for (; round.begin < whole; round.begin += most, ++round.index) {
    round.count = std::min(most, whole - round.begin);
    function(round);
  }
  return round.index;
}

// Staged is what a round has put into a rank's area: `bytes` for all, or for the rank at place p those at p * stride.
struct Staged {
  std::size_t bytes = 0;
  std::size_t stride = 0;
  std::size_t round = 0;
};

// ---- sums ----

// Every rank's contribution, by place; this rank's from its own data.
template <typename Meeting, typename Address>
std::span<const void* const> contributions(Meeting& meeting, const void* own, const Address& address) {
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
void move_directly(Meeting& meeting, const AllGather& operation, std::size_t segment) {
  const std::size_t shard = operation.shard.count();
  if (shard == 0) return;
  for_each_peer(meeting.place(), meeting.size(), [&](int peer) {
    const std::size_t offset = static_cast<std::size_t>(peer) * shard;
    meeting.copy(operation.data + offset, meeting.data_of(peer, segment) + offset, shard);
  });
}

template <typename Meeting>
void move_directly(Meeting& meeting, const ReduceScatter& operation, std::size_t segment) {
  if (operation.shard_elements == 0) return;
  const std::size_t shard = bytes_of(operation.wire, operation.shard_elements).count();
  const std::size_t offset = static_cast<std::size_t>(meeting.place()) * shard;
  const auto of = [&](int place) { return meeting.data_of(place, segment) + offset; };
  const auto all = contributions(meeting, operation.data + offset, of);
  meeting.sum(sum_of(operation, all, 0, operation.shard_elements));
}

// First each rank sums its slice into its own memory, then it copies the other slices from those who summed them.
template <typename Meeting>
void move_directly(Meeting& meeting, const AllReduce& operation, std::size_t segment) {
  const Slice own = slice_of(operation.elements, meeting.place(), meeting.size());
  if (own.size() > 0) {
    const auto of = [&](int place) { return meeting.data_of(place, segment) + own.begin * sizeof(float); };
    meeting.sum(sum_of(operation, contributions(meeting, operation.data + own.begin, of), own.begin, own.size()));
  }
  meeting.regroup();
  for_each_peer(meeting.place(), meeting.size(), [&](int peer) {
    const Slice slice = slice_of(operation.elements, peer, meeting.size());
    if (slice.size() == 0) return;
    auto* const to = reinterpret_cast<std::byte*>(operation.data + slice.begin);
    meeting.copy(to, meeting.data_of(peer, segment) + slice.begin * sizeof(float), slice.size() * sizeof(float));
  });
}

template <typename Meeting>
void move_directly(Meeting& meeting, const Broadcast& operation, std::size_t segment) {
  if (meeting.place() == operation.root || operation.size == Bytes(0)) return;
  meeting.copy(operation.data, meeting.data_of(operation.root, segment), operation.size.count());
}

template <typename Meeting>
void move_directly(Meeting& meeting, const Redistribute& operation, std::size_t segment) {
  const auto take_from = [&](int from, const std::byte* data) {
    for (const Transfer& transfer : operation.transfers) {
      if (transfer.to != meeting.place() || transfer.from != from || transfer.size == Bytes(0)) continue;
      meeting.copy(operation.data + transfer.target.count(), data + transfer.source.count(), transfer.size.count());
    }
  };
  take_from(meeting.place(), operation.data);
  for_each_peer(meeting.place(), meeting.size(), [&](int peer) { take_from(peer, meeting.data_of(peer, segment)); });
}

// ---- in rounds ----
//
// Rounds of all segments of a call count on from `first_round`. Each returns the number of its own.

template <typename Meeting>
std::size_t move_in_rounds(Meeting& meeting, const AllGather& operation, std::size_t first_round) {
  const std::size_t shard = operation.shard.count();
  const std::size_t own = static_cast<std::size_t>(meeting.place()) * shard;
  return for_each_round(shard, Meeting::round_bytes, [&](const Round& round) {
    const std::size_t area = first_round + round.index;
    meeting.copy(meeting.staging(meeting.place(), area), operation.data + own + round.begin, round.count);
    meeting.regroup({.bytes = round.count, .round = area});
    for_each_peer(meeting.place(), meeting.size(), [&](int peer) {
      std::byte* const to = operation.data + static_cast<std::size_t>(peer) * shard + round.begin;
      meeting.copy(to, meeting.staging(peer, area), round.count);
    });
  });
}

// An area of so many bytes holds a piece for each rank, one after the other: so many blocks of a type. Throws
// UsageError where not one of each fits.
inline std::size_t blocks_in_area(DType type, std::size_t ranks, std::size_t bytes) {
  constexpr std::size_t lanes = 32;  // that kernels add at once
  const std::size_t room = bytes / ranks / size_of(type).count();
  if (room == 0) {
    throw UsageError(fmt::format(
        "{} ranks cannot sum what travels in {} over this transport, whose messages have room for {} blocks of {}: let "
        "gradients travel in 16 bits (Precision::wire, --wire)",
        ranks, to_string(type), bytes / size_of(type).count(), to_string(size_of(type))));
  }
  return room < lanes ? room : room / lanes * lanes;
}

template <typename Meeting>
std::size_t move_in_rounds(Meeting& meeting, const ReduceScatter& operation, std::size_t first_round) {
  const std::size_t block = block_of(operation.wire), block_bytes = size_of(operation.wire).count();
  const std::size_t most =
      blocks_in_area(operation.wire, static_cast<std::size_t>(meeting.size()), Meeting::round_bytes);
  const std::size_t shard = bytes_of(operation.wire, operation.shard_elements).count();
  const std::size_t stride = most * block_bytes;
  const auto me = static_cast<std::size_t>(meeting.place());
  return for_each_round(operation.shard_elements / block, most, [&](const Round& round) {
    const std::size_t area = first_round + round.index;
    const std::size_t begin = round.begin * block_bytes;
    const std::size_t bytes = round.count * block_bytes;
    for_each_peer(meeting.place(), meeting.size(), [&](int peer) {
      const auto to = static_cast<std::size_t>(peer);
      meeting.copy(meeting.staging(meeting.place(), area) + to * stride, operation.data + to * shard + begin, bytes);
    });
    meeting.regroup({.bytes = bytes, .stride = stride, .round = area});
    const auto of = [&](int place) { return meeting.staging(place, area) + me * stride; };
    const auto all = contributions(meeting, operation.data + me * shard + begin, of);
    meeting.sum(sum_of(operation, all, round.begin * block, round.count * block));
  });
}

// Every rank sums everything: what travels is the same, and no second exchange is needed.
template <typename Meeting>
std::size_t move_in_rounds(Meeting& meeting, const AllReduce& operation, std::size_t first_round) {
  return for_each_round(operation.elements, Meeting::round_bytes / sizeof(float), [&](const Round& round) {
    const std::size_t area = first_round + round.index;
    const auto* const own = reinterpret_cast<const std::byte*>(operation.data + round.begin);
    meeting.copy(meeting.staging(meeting.place(), area), own, round.count * sizeof(float));
    meeting.regroup({.bytes = round.count * sizeof(float), .round = area});
    const auto of = [&](int place) { return meeting.staging(place, area); };
    meeting.sum(sum_of(operation, contributions(meeting, own, of), round.begin, round.count));
  });
}

template <typename Meeting>
std::size_t move_in_rounds(Meeting& meeting, const Broadcast& operation, std::size_t first_round) {
  const bool root = meeting.place() == operation.root;
  return for_each_round(operation.size.count(), Meeting::round_bytes, [&](const Round& round) {
    const std::size_t area = first_round + round.index;
    std::byte* const data = operation.data + round.begin;
    if (root) meeting.copy(meeting.staging(operation.root, area), data, round.count);
    meeting.regroup({.bytes = root ? round.count : 0, .round = area});
    if (!root) meeting.copy(data, meeting.staging(operation.root, area), round.count);
  });
}

// A round has a stretch of what a rank gives to others, one transfer after the other. InRound is the part of a transfer
// that is in it: where it begins in the transfer, where in the stretch, and its size.
struct InRound {
  std::size_t begin;
  std::size_t place;
  std::size_t size;
};
template <typename Function>
std::size_t for_each_given(std::span<const Transfer> transfers, int from, const Slice& stretch,
                           const Function& function) {
  std::size_t end = 0;
  for (const Transfer& transfer : transfers) {
    if (transfer.from != from || transfer.to == from) continue;
    const std::size_t begin = end;
    end += transfer.size.count();
    const std::size_t first = std::max(begin, stretch.begin), last = std::min(end, stretch.end);
    if (first < last) function(transfer, InRound{first - begin, first - stretch.begin, last - first});
  }
  return end;
}

// There are as many rounds as the rank takes that gives the most; areas of those that have given all are empty. Whoever
// needs little of an area gets all of it, so between hosts every byte goes to each.
template <typename Meeting>
std::size_t move_in_rounds(Meeting& meeting, const Redistribute& operation, std::size_t first_round) {
  const int me = meeting.place();
  std::size_t most = 0;
  for (int place = 0; place < meeting.size(); ++place) {
    most = std::max(most, for_each_given(operation.transfers, place, {0, 0}, [](const Transfer&, const InRound&) {}));
  }
  for (const Transfer& transfer : operation.transfers) {
    if (transfer.from != me || transfer.to != me) continue;
    meeting.copy(operation.data + transfer.target.count(), operation.data + transfer.source.count(),
                 transfer.size.count());
  }
  return for_each_round(most, Meeting::round_bytes, [&](const Round& round) {
    const std::size_t area = first_round + round.index;
    const Slice stretch{round.begin, round.begin + round.count};
    std::size_t given = 0;
    for_each_given(operation.transfers, me, stretch, [&](const Transfer& transfer, const InRound& part) {
      meeting.copy(meeting.staging(me, area) + part.place, operation.data + transfer.source.count() + part.begin,
                   part.size);
      given = part.place + part.size;
    });
    meeting.regroup({.bytes = given, .round = area});
    for_each_peer(me, meeting.size(), [&](int peer) {
      for_each_given(operation.transfers, peer, stretch, [&](const Transfer& transfer, const InRound& part) {
        if (transfer.to != me) return;
        meeting.copy(operation.data + transfer.target.count() + part.begin, meeting.staging(peer, area) + part.place,
                     part.size);
      });
    });
  });
}

// ---- one rank's part of each collective ----

template <typename Meeting>
concept ReadsPeers = requires(Meeting& meeting) {
  meeting.data_of(0, std::size_t{0});
};
template <typename Meeting>
concept Stages = requires(Meeting& meeting) {
  meeting.staging(0, std::size_t{0});
};

// Meets the peers, and then moves each segment in the way that there is.
template <typename Meeting, typename Operation>
void run_collective(Meeting& meeting, std::span<const Operation> segments) {
  meeting.meet(reinterpret_cast<const std::byte*>(segments.front().data), [&] {
    [[maybe_unused]] std::size_t rounds = 0;
    for (std::size_t segment = 0; segment < segments.size(); ++segment) {
      if constexpr (!Stages<Meeting>) {
        move_directly(meeting, segments[segment], segment);
      } else if constexpr (!ReadsPeers<Meeting>) {
        rounds += move_in_rounds(meeting, segments[segment], rounds);
      } else if (meeting.is_direct()) {
        move_directly(meeting, segments[segment], segment);
      } else {
        rounds += move_in_rounds(meeting, segments[segment], rounds);
      }
    }
  });
}

template <typename Meeting, typename Operation>
void run_collective(Meeting& meeting, const Operation& operation) {
  run_collective(meeting, std::span(&operation, 1));
}

template <typename Meeting>
void run_collective(Meeting& meeting, const Barrier&) {
  meeting.meet(nullptr, [] {});
}

}  // namespace tessera::comm
