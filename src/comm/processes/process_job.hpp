// The job of ranks that are processes.
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

#include "comm/control/ledger.hpp"
#include "comm/hosts.hpp"
#include "comm/introduction.hpp"
#include "comm/job_failure.hpp"
#include "comm/patience.hpp"
#include "comm/processes/shared_memory.hpp"
#include "tessera/device/arena.hpp"

namespace tessera::comm {

// The job of ranks that are processes: where they are, its first failure, who has left, and the arenas of this host's
// ranks.
//
// Thread safety: all of it but the making and leave(), which are the rank's own thread's. Nothing is locked across
// processes, because one may end at any instruction: states are atomics in shared memory, and waits look at them.

class Exchange;
class ProcessGroup;

class ProcessJob final : public JobMember {
 public:
  // Collective over all processes; throws when they do not come in time, and UnavailableError for ranks on several
  // hosts where nothing carries messages between them. The introduction may end afterwards.
  ProcessJob(Introduction& introduction, std::chrono::milliseconds timeout);
  ~ProcessJob() final;

  std::string_view backend_name() const { return backend_name_; }
  const Place& place() const { return place_; }
  // Cores that a rank of this host may call its own, at least 1.
  int cores_per_rank() const { return cores_per_rank_; }
  // Messages to other hosts; null when all ranks are here.
  Exchange* exchange() { return exchange_.get(); }
  // The memory in which communicators are made.
  SharedMemory take_creation_memory() { return std::move(creation_memory_); }

  int rank() const final { return place_.rank; }
  int size() const final { return place_.ranks; }
  std::chrono::milliseconds timeout() const final { return timeout_; }
  void abort(std::string_view cause, std::exception_ptr exception) noexcept final;
  // Aborts for a collective: all ranks in it get this text.
  void abort(const Verdict& verdict) noexcept;
  const JobFailure* failure() const noexcept final;
  // Writes another host's news down for this one. Whether it was the first: a longer cause loses its end.
  bool note_failure(int rank, const Position& verdict, std::string_view cause) noexcept;
  void note_left(int rank) noexcept;
  void note_reported() noexcept;
  void note_life(int rank, SignOfLife::Clock::time_point at) noexcept { member(rank).life.note(at); }

  void note_answer(int rank) noexcept { answers_[static_cast<std::size_t>(rank)].note(SignOfLife::Clock::now()); }

  bool anyone_left() const { return shared().anyone_left.load(std::memory_order_acquire) != 0; }
  bool has_left(int rank) const { return member(rank).left.load(std::memory_order_acquire) != 0; }
  pid_t process_of(int rank) const { return member(rank).process; }
  // True once the process of a rank of this host is no more. A launcher hears of other hosts' processes.
  bool has_ended(int rank) const;
  // Memory that a rank of this host shares. Throws CommunicationError, which names the rank where it has ended
  // meanwhile.
  SharedMemory open_memory(int rank, int descriptor, Bytes size) const;

  SignOfLife::Clock::time_point life_of(int rank) const { return member(rank).life.last(); }
  // When another host's process last answered this one's question.
  SignOfLife::Clock::time_point answer_of(int rank) const { return answers_[static_cast<std::size_t>(rank)].last(); }
  // For whom a rank of this host has waited for long, or −1; of other hosts nothing is known.
  int awaited_by(int rank) const { return member(rank).awaits.load(std::memory_order_relaxed) - 1; }
  void note_awaited(int awaited) noexcept { member(place_.rank).awaits.store(awaited + 1, std::memory_order_relaxed); }
  // This rank gave a sign of life then.
  void show_life(SignOfLife::Clock::time_point at) noexcept;

  // Communicators of this process, while they live: a rank that does not come to one may wait in another.
  void add(const ProcessGroup& group) {
    const std::lock_guard lock(group_mutex_);
    groups_.push_back(&group);
  }
  void remove(const ProcessGroup& group) {
    const std::lock_guard lock(group_mutex_);
    std::erase(groups_, &group);
  }
  template <typename Visit>
  void for_each_group(const Visit& visit) {
    const std::lock_guard lock(group_mutex_);
    for (const ProcessGroup* const group : groups_) visit(*group);
  }

  void note_progress() noexcept final;
  void leave() noexcept final;
  void say_reported() noexcept final;
  // Up to the deadline, and at most five seconds.
  bool wait_for_report() noexcept final;

  // Memory that peers of this host can reach.
  Arena make_arena(Bytes size);

  // Where in this rank's arenas a range of memory is.
  shared::Data locate(const void* data, Bytes size) const;
  // The same range of a peer's arena here. Throws CommunicationError when its memory cannot be opened.
  const std::byte* address(int rank, const shared::Data& there);

 private:
  friend class SharedArena;
  class LeaversWatch;
  struct Mapped {  // an arena of a peer's
    std::uint64_t generation = 0;
    SharedMemory memory;
  };

  bool all_left() const;
  SharedMemory share(Introduction& introduction, const char* name, Bytes size, std::chrono::milliseconds timeout) const;
  void fail(const Position& verdict, std::string_view cause, std::exception_ptr exception) noexcept;
  shared::Job& shared() const { return *reinterpret_cast<shared::Job*>(memory_.data()); }
  shared::Member& member(int rank) const { return shared().members[rank]; }
  std::size_t free_arena() const;
  void forget_stale_arenas();

  const std::string_view backend_name_;
  const std::chrono::milliseconds timeout_;
  Place place_;
  int cores_per_rank_ = 1;
  SharedMemory memory_;
  SharedMemory creation_memory_;

  mutable std::mutex arena_mutex_;
  std::vector<const SharedMemory*> own_;    // by slot; null: free
  std::vector<std::vector<Mapped>> peers_;  // by rank and slot

  std::mutex group_mutex_;
  std::vector<const ProcessGroup*> groups_;

  mutable std::mutex failure_mutex_;
  mutable FirstFailure failure_;  // this process's copy
  std::exception_ptr exception_;

  std::atomic<SignOfLife::Clock::rep> life_told_ = 0;  // to other hosts
  std::vector<SignOfLife> answers_;                    // by rank

  std::unique_ptr<Exchange> exchange_;  // ends first: it writes into all of the above
};

}  // namespace tessera::comm
