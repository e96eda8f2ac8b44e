// What stands in the memory that the ranks of one host share, beside their arenas: the job's state, and for each
// communicator a meeting point. All of it starts as zeros and is reached by every rank of the host; what is no atomic
// is written before an atomic that its readers have seen.
//
// The state of ranks on other hosts stands here too: their messages are written down by one rank of this host
// (exchange.hpp).
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tessera/base/bytes.hpp"

namespace tessera::comm::shared {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

// A text that is there once `state` says so. Who changes it from none to writing writes it.
struct Text {
  static constexpr std::uint32_t none = 0, writing = 1, there = 2;
  std::atomic<std::uint32_t> state;
  std::int32_t rank;  // whose text it is
  std::array<char, 4088> characters;
};

// ---- the job ----

// A file of a rank's arena memory. Peers map it when a collective first needs it, and again when `generation` differs.
struct ArenaEntry {
  std::atomic<std::uint64_t> generation;  // 0: never used
  std::atomic<std::uint64_t> size;        // 0: gone
  std::int32_t descriptor;
};
constexpr std::size_t most_arenas = 64;  // of one rank at a time

struct Member {
  pid_t process;
  std::atomic<std::uint32_t> left;
  std::array<ArenaEntry, most_arenas> arenas;
};

struct Job {
  Text failure;
  std::atomic<std::uint32_t> reported;  // the failing rank has told the user
  std::atomic<std::uint32_t> leavers;   // ranks that have left
  Member members[1];                    // by rank: as many as there are
};

// ---- a communicator ----

constexpr std::size_t label_capacity = 88;
constexpr std::size_t most_segments = 16384;  // of one call
constexpr std::int32_t nowhere = -1;          // memory that peers cannot reach

// One segment of a call: what ranks must agree on, and where its data is.
struct Segment {
  std::uint64_t bytes;
  std::uint64_t label_hash;
  std::int32_t dtype;  // -1: none
  float divisor;
  std::array<char, label_capacity> label;  // its beginning, ends with a zero
  std::uint64_t offset;                    // of its data in the rank's arena
  std::int32_t arena;                      // or nowhere
};

struct Post {
  std::uint64_t sequence;
  std::uint32_t kind;
  std::int32_t root;
  std::uint32_t segments;
  std::int32_t descriptor;  // of a creation: the new communicator's file, on the rank that leads its host
};

struct alignas(64) Slot {
  std::atomic<std::uint64_t> arrivals;  // how many phases this rank has come to the end of
  Post post;
};

// The low bits of `phase` count what all ranks have passed; `failed` is set when the present phase never ends.
struct Group {
  static constexpr std::uint32_t failed = 0x80000000u;
  alignas(64) std::atomic<std::uint32_t> phase;
  Text verdict;  // why it failed
};

// Through which data goes that peers cannot reach: two areas per rank, used in turn.
constexpr std::size_t staging_bytes = std::size_t{1} << 20;
constexpr std::size_t staging_areas = 2;

constexpr std::uint64_t align(std::uint64_t offset) { return round_up(offset, 4096); }

inline Bytes job_size(int ranks) { return Bytes(sizeof(Job) + static_cast<std::uint64_t>(ranks) * sizeof(Member)); }

// Offsets of a communicator's parts. Only pages that are written exist, so the room for segments costs nothing.
struct GroupLayout {
  explicit GroupLayout(int ranks) : n(static_cast<std::uint64_t>(ranks)) {}
  std::uint64_t n;
  std::uint64_t slots() const { return align(sizeof(Group)); }
  std::uint64_t segments() const { return align(slots() + n * sizeof(Slot)); }
  std::uint64_t segments_stride() const { return align(most_segments * sizeof(Segment)); }
  std::uint64_t staging() const { return segments() + n * segments_stride(); }
  Bytes size() const { return Bytes(staging() + n * staging_areas * staging_bytes); }
};

}  // namespace tessera::comm::shared
