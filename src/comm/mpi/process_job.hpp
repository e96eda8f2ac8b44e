// The job of ranks that are processes: where they are, its first failure, who has left, and the arenas of this host's
// ranks.
//
// Thread safety: all of it but the making and leave(), which are the rank's own thread's. Nothing is locked across
// processes, because one may end at any instruction: states are atomics in shared memory, and waits look at them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "comm/job_failure.hpp"
#include "comm/mpi/mpi_process.hpp"
#include "comm/mpi/place.hpp"
#include "comm/mpi/shared_layout.hpp"
#include "comm/mpi/shared_memory.hpp"
#include "tessera/device/arena.hpp"

namespace tessera::comm {

class Exchange;

class ProcessJob {
 public:
  // Collective over all processes; throws when they do not come in time.
  ProcessJob(MpiProcess& process, std::chrono::milliseconds timeout);
  ~ProcessJob();
  ProcessJob(const ProcessJob&) = delete;
  ProcessJob& operator=(const ProcessJob&) = delete;

  const Place& place() const { return place_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // Cores that a rank of this host may call its own, at least 1.
  int cores_per_rank() const { return cores_per_rank_; }
  // Messages to other hosts; null when all ranks are here.
  Exchange* exchange() { return exchange_.get(); }
  // The memory in which communicators are made.
  SharedMemory take_creation_memory() { return std::move(creation_memory_); }

  // The first failure of any rank wins.
  void abort(std::string_view cause, std::exception_ptr exception) noexcept;
  // Null while nothing failed; constant afterwards.
  const JobFailure* failure() const noexcept;
  // Writes another host's news down for this one.
  void note_failure(int rank, std::string_view cause) noexcept;
  void note_left(int rank) noexcept;
  void note_reported() noexcept;

  bool anyone_left() const { return shared().leavers.load(std::memory_order_acquire) > 0; }
  bool has_left(int rank) const { return member(rank).left.load(std::memory_order_acquire) != 0; }
  pid_t process_of(int rank) const { return member(rank).process; }

  // This rank takes part in nothing more. Returns when all ranks have left, or the job has failed.
  void leave() noexcept;
  // After a failure: the rank where it happened says that it has told the user; the others wait for that, up to the
  // deadline, and at most five seconds. Whether that rank has told.
  void say_reported() noexcept;
  bool wait_for_report() const noexcept;

  // Memory that peers of this host can reach.
  Arena make_arena(Bytes size);

  // Where in this rank's arenas a range of memory is.
  struct Reference {
    std::int32_t arena = shared::nowhere;
    std::uint64_t offset = 0;
  };
  Reference locate(const void* data, Bytes size) const;
  // The same range of a peer's arena here. Throws CommunicationError when its memory cannot be opened.
  const std::byte* address(int rank, Reference reference);

 private:
  friend class SharedArena;
  struct Own {  // an arena of this rank's
    const std::byte* data = nullptr;
    Bytes size{};
  };
  struct Mapped {  // an arena of a peer's
    std::uint64_t generation = 0;
    SharedMemory memory;
  };

  void meet(MpiProcess& process, std::chrono::milliseconds timeout);
  shared::Job& shared() const { return *reinterpret_cast<shared::Job*>(memory_.data()); }
  shared::Member& member(int rank) const { return shared().members[rank]; }
  void add_arena(std::size_t slot, const SharedMemory& memory);
  void remove_arena(std::size_t slot) noexcept;
  std::size_t free_arena() const;
  void forget_stale_arenas();
  void publish_failure() const noexcept;

  const std::chrono::milliseconds timeout_;
  Place place_;
  int cores_per_rank_ = 1;
  SharedMemory memory_;
  SharedMemory creation_memory_;

  mutable std::mutex arena_mutex_;
  std::vector<Own> own_;                    // by slot
  std::vector<std::vector<Mapped>> peers_;  // by rank and slot

  mutable std::mutex failure_mutex_;
  mutable JobFailure failure_;  // this process's copy
  std::exception_ptr exception_;
  mutable std::atomic<bool> failed_ = false;

  std::unique_ptr<Exchange> exchange_;  // ends first: it writes into all of the above
};

}  // namespace tessera::comm
