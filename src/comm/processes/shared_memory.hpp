// Memory that processes of one host share: mappings of files without names, and what stands in them.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/job_failure.hpp"
#include "comm/patience.hpp"
#include "tessera/base/bytes.hpp"

namespace tessera::comm {

// ---- mappings ----
//
// Memory that processes of one host share: a file without a name (memfd), which its owner makes and its peers open
// through the owner's entry in /proc. It is gone when the last process that maps it is, however that one ends.

// Where peers find a file: valid while the owner lives and keeps it.
struct SharedFile {
  pid_t owner = 0;
  int descriptor = -1;
  Bytes size{};
};

// One mapping; move-only.
class SharedMemory {
 public:
  SharedMemory() = default;
  // Makes a file of `size` zero bytes, of which pages exist once they are written. Throws MemoryError.
  static SharedMemory make(const char* name, Bytes size);
  // Maps a peer's file. Throws CommunicationError naming the process when the system does not allow it.
  static SharedMemory open(const SharedFile& file);

  SharedMemory(SharedMemory&& other) noexcept { *this = static_cast<SharedMemory&&>(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory() { close(); }

  // Makes all pages of memory that was made here exist from now on, so that a lack of memory is an error here, not a
  // signal later. Throws MemoryError.
  void reserve();

  std::byte* data() const { return data_; }  // null when empty
  Bytes size() const { return size_; }
  SharedFile file() const;  // of one that was made here

 private:
  void map(Bytes size);
  void close() noexcept;

  std::byte* data_ = nullptr;
  Bytes size_{};
  int descriptor_ = -1;  // of one that was made here
};

// ---- what stands there ----
//
// The ranks of one host share this memory beside their arenas: the job's state, and for each communicator a meeting
// point. All of it starts as zeros and is reached by every rank of the host; a member that is no atomic is written
// before an atomic that its readers have seen.
// The state of ranks on other hosts stands here too: their messages are written down by one rank of this host
// (exchange.hpp).

namespace shared {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

// ---- the job ----

// A Failure is a JobFailure's form here: it is there once `state` says so. Who changes it from none to writing writes
// it.
struct Failure {
  static constexpr std::uint32_t none = 0, writing = 1, there = 2;
  std::atomic<std::uint32_t> state;
  std::int32_t rank;
  Position verdict;
  std::array<char, 4072> cause;
};

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
  SignOfLife life;
  std::atomic<std::int32_t> awaits;  // another rank, plus 1, for long; 0: nobody
  std::array<ArenaEntry, most_arenas> arenas;
};

struct Job {
  Failure failure;
  std::atomic<std::uint32_t> reported;  // the failing rank has told the user
  std::atomic<std::uint32_t> anyone_left;
  Member members[1];  // by rank: as many as there are
};

// ---- a communicator ----

constexpr std::size_t most_segments = 16384;     // of one call
constexpr std::size_t code_capacity = 4u << 20;  // of one call's signature

// Where a segment's data is: `offset` bytes into one of the rank's arenas, or where peers cannot reach it, or none.
constexpr std::int32_t nowhere = -1;
constexpr std::int32_t no_data = -2;
struct Data {
  std::uint64_t offset = 0;
  std::int32_t arena = nowhere;
};

// A Post is a rank's call: the first bytes of its code area are the encoded signature (signature.hpp), on which all
// agree.
struct Post {
  std::uint32_t code_size;
  std::uint32_t segments;
  std::int32_t descriptor;  // of a creation: the new communicator's file, on the rank that made it
};

struct alignas(64) Slot {
  std::atomic<std::uint64_t> arrivals;  // how many phases this rank has come to the end of
  Post post;
};

struct Group {
  alignas(64) std::atomic<std::uint32_t> phase;  // how many all ranks have passed
};

// Through which data goes that peers cannot reach: two areas per rank, used in turn.
constexpr std::size_t staging_bytes = std::size_t{1} << 20;
constexpr std::size_t staging_areas = 2;

constexpr std::uint64_t align(std::uint64_t offset) { return round_up(offset, 4096); }

inline Bytes job_size(int ranks) { return Bytes(sizeof(Job) + static_cast<std::uint64_t>(ranks) * sizeof(Member)); }

// Offsets of a communicator's parts, which its ranks have by their places. Only pages that are written exist, so the
// room for long calls costs nothing.
struct GroupLayout {
  explicit GroupLayout(int ranks) : n(static_cast<std::uint64_t>(ranks)) {}
  std::uint64_t n;
  std::uint64_t slots() const { return align(sizeof(Group)); }
  std::uint64_t data() const { return align(slots() + n * sizeof(Slot)); }
  std::uint64_t data_stride() const { return align(most_segments * sizeof(Data)); }
  std::uint64_t codes() const { return data() + n * data_stride(); }
  std::uint64_t staging() const { return codes() + n * code_capacity; }
  Bytes size() const { return Bytes(staging() + n * staging_areas * staging_bytes); }
};

}  // namespace shared

}  // namespace tessera::comm
