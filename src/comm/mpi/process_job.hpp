// Where the ranks of a job of processes are, and the job itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/control/ledger.hpp"
#include "comm/hosts.hpp"
#include "comm/introduction.hpp"
#include "comm/job_failure.hpp"
#include "comm/mpi/shared_memory.hpp"
#include "comm/patience.hpp"
#include "tessera/device/arena.hpp"

namespace tessera::comm {

// Where the ranks of a job are: which of them share a host, and with it memory, with this one.

struct Place {
  int rank = 0;
  int ranks = 1;
  int hosts = 1;
  std::vector<int> host_of;             // by rank; hosts count from 0 in the order of their lowest rank
  std::vector<std::string> host_names;  // by host
  std::vector<int> here;                // the ranks of this host, ascending

  bool is_here(int other) const { return host_of[static_cast<std::size_t>(other)] == host(); }
  int host() const { return host_of[static_cast<std::size_t>(rank)]; }
  int leader() const { return here.front(); }
  bool leads() const { return leader() == rank; }
  Hosts of_meshes() const { return hosts > 1 ? Hosts{.of_rank = host_of, .names = host_names} : Hosts{}; }
};

// What processes have in common exactly when they can share memory: the host's name, its boot, and the processes that
// they see (containers see their own).
std::string host_key();

// From every rank's key, in rank order.
Place place_of(int rank, const std::vector<std::string>& host_keys);
// Of this process. Collective; throws when the others do not come in time.
Place find_place(Introduction& introduction, std::chrono::milliseconds timeout);

// The job of ranks that are processes: where they are, its first failure, who has left, and the arenas of this host's
// ranks.
//
// Thread safety: all of it but the making and leave(), which are the rank's own thread's. Nothing is locked across
// processes, because one may end at any instruction: states are atomics in shared memory, and waits look at them.

class Exchange;

class ProcessJob final : public Membership {
 public:
  // Collective over all processes; throws when they do not come in time, and UnavailableError for ranks on several
  // hosts where nothing carries messages between them. The introduction may end afterwards.
  ProcessJob(Introduction& introduction, std::chrono::milliseconds timeout);
  ~ProcessJob() final;

  std::string_view backend_name() const { return backend_name_; }
  const Place& place() const { return place_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // Cores that a rank of this host may call its own, at least 1.
  int cores_per_rank() const { return cores_per_rank_; }
  // Messages to other hosts; null when all ranks are here.
  Exchange* exchange() { return exchange_.get(); }
  // The memory in which communicators are made.
  SharedMemory take_creation_memory() { return std::move(creation_memory_); }

  int rank() const final { return place_.rank; }
  void abort(std::string_view cause, std::exception_ptr exception) noexcept final;
  // Of a collective: all ranks in it get this text.
  void abort(const Verdict& verdict) noexcept;
  const JobFailure* failure() const noexcept final;
  // Writes another host's news down for this one. Whether it was the first: a longer cause loses its end.
  bool note_failure(int rank, const Position& verdict, std::string_view cause) noexcept;
  void note_left(int rank) noexcept;
  void note_reported() noexcept;
  void note_life(int rank, SignOfLife::Clock::time_point at) noexcept { member(rank).life.note(at); }

  bool anyone_left() const { return shared().leavers.load(std::memory_order_acquire) > 0; }
  bool has_left(int rank) const { return member(rank).left.load(std::memory_order_acquire) != 0; }
  pid_t process_of(int rank) const { return member(rank).process; }
  // Of a rank of this host: its process is no more. Of other hosts' processes their launcher hears.
  bool has_ended(int rank) const;

  SignOfLife::Clock::time_point life_of(int rank) const { return member(rank).life.last(); }
  // This rank gave a sign of life then.
  void show_life(SignOfLife::Clock::time_point at) noexcept;

  void note_progress() noexcept final;
  void leave() noexcept final;
  void say_reported() noexcept final;
  // Up to the deadline, and at most five seconds.
  bool wait_for_report() noexcept final;

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
  class LeaversWatch;
  struct Own {  // an arena of this rank's
    const std::byte* data = nullptr;
    Bytes size{};
  };
  struct Mapped {  // an arena of a peer's
    std::uint64_t generation = 0;
    SharedMemory memory;
  };

  void meet(Introduction& introduction, std::chrono::milliseconds timeout);
  void fail(const Position& verdict, std::string_view cause, std::exception_ptr exception) noexcept;
  shared::Job& shared() const { return *reinterpret_cast<shared::Job*>(memory_.data()); }
  shared::Member& member(int rank) const { return shared().members[rank]; }
  void add_arena(std::size_t slot, const SharedMemory& memory);
  void remove_arena(std::size_t slot) noexcept;
  std::size_t free_arena() const;
  void forget_stale_arenas();

  const std::string_view backend_name_;
  const std::chrono::milliseconds timeout_;
  Place place_;
  int cores_per_rank_ = 1;
  SharedMemory memory_;
  SharedMemory creation_memory_;

  mutable std::mutex arena_mutex_;
  std::vector<Own> own_;                    // by slot
  std::vector<std::vector<Mapped>> peers_;  // by rank and slot

  mutable std::mutex failure_mutex_;
  mutable FirstFailure failure_;  // this process's copy
  std::exception_ptr exception_;

  std::atomic<SignOfLife::Clock::rep> life_told_ = 0;  // to other hosts

  std::unique_ptr<Exchange> exchange_;  // ends first: it writes into all of the above
};

}  // namespace tessera::comm
