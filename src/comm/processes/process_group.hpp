// Where the ranks of one communicator meet when they are processes. A collective on each rank is: all have posted what
// they call and agree; move data, with regroup() where all must have moved; at its end nobody reads this rank's memory
// any more.
//
// Ranks are told apart by their places in the group; errors name ranks of the job.
//
// A rank may read a peer's arena directly when is_direct(), else what it has put into its staging area before the last
// regroup(). Areas are used in turn, so one regroup() between two uses is enough. Thread safety: one thread at a time,
// but for what Exchange calls. Allocation: on construction, for errors, and when a collective is the longest to
// describe so far.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/control/ledger.hpp"
#include "comm/meeting_collectives.hpp"
#include "comm/members.hpp"
#include "comm/pinned.hpp"
#include "comm/processes/process_job.hpp"
#include "comm/processes/shared_memory.hpp"
#include "comm/signature.hpp"
#include "comm/task_communicator.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {

class ProcessGroup : Pinned {
 public:
  // memory: what all members that are here share.
  ProcessGroup(ProcessJob& job, Identity identity, SharedMemory memory);
  ~ProcessGroup();

  int place() const { return members().place; }
  int size() const { return members().size(); }
  const Members& members() const { return identity_.members; }
  int rank_at(int place) const { return members().ranks[static_cast<std::size_t>(place)]; }  // of the job
  std::size_t channel() const { return identity_.channel; }
  const std::string& name() const { return identity_.name; }

  // One collective. Throws as every backend's do, and what moving throws, with which the job then fails; ranks that
  // wait here get the same error.
  template <typename Operation>
  void run(const Signature& signature, const Operation& operation) {
    const Claim claim(busy_, job_, name());
    signature_ = signature;
    run_collective(*this, operation);
  }
  // The same, of a creation: `move` runs when all have come and agree. descriptor: of what this rank has made.
  template <typename Move>
  void run_creation(const std::string& label, int descriptor, const Move& move) {
    signature_ = signature_of_creation(label);
    meet(nullptr, move, descriptor);
  }

  // ---- as a Meeting (meeting_collectives.hpp), in both ways ----

  template <typename Move>
  void meet(const std::byte* data, const Move& move, int descriptor = -1) {
    enter(data, descriptor);
    try {
      move();
    } catch (...) {
      job_.abort(text_of(std::current_exception()), std::current_exception());
      throw;
    }
    regroup();
  }

  // staged: what has been put into this rank's area since the last meeting.
  void regroup(const Staged& staged = {});
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void sum(const kernels::RankedSum& of) const { kernels::ranked_sum_cpu(of); }

  bool is_direct() const { return direct_; }
  const std::byte* data_of(int place, std::size_t segment);  // is_direct() only
  int creation_descriptor(int place) const { return slot(place).post.descriptor; }

  static constexpr std::size_t round_bytes = shared::staging_bytes;
  std::byte* staging(int place, std::size_t round) const;
  std::span<const void*> scratch() { return scratch_; }

  // ---- what Exchange calls, for ranks of other hosts ----

  // All of the above stands in this memory. MPI may use it longer than the group lives.
  const std::shared_ptr<SharedMemory>& memory() const { return memory_; }

  int place_of(int rank) const;  // of one of the group
  shared::Slot& slot(int place) const;
  // Returns the post of the rank at this place, as it stands in its code area; and that area.
  std::string_view code(int place) const { return {code_area(place), slot(place).post.code_size}; }
  char* code_area(int place) const;
  // The rank at this place has come to the end of a phase.
  void arrive(int place) noexcept;

 private:
  shared::Group& state() const { return *reinterpret_cast<shared::Group*>(memory_->data()); }
  // Where verdicts about the phase of this number, from 1, are.
  Position position(std::uint64_t phase) const { return {.channel = channel(), .number = phase}; }

  Exchange* to_other_hosts() const;  // null when all of the group are here

  void enter(const std::byte* data, int descriptor);
  void post(const std::byte* data, int descriptor);
  shared::Data* data(int place) const;
  shared::Data find(const Signature& segment, const std::byte* data) const;
  void end_phase() noexcept;
  void await();
  void check_agreement();
  bool all_reachable() const;

  std::optional<Verdict> announce_to(Ledger& ledger) const;
  void announce_waiting(Ledger& ledger) const;
  std::optional<Verdict> judge(const Patience& patience, bool waits_long) const;
  void follow_life();
  bool has_come(int place) const;

  ProcessJob& job_;
  const Identity identity_;
  bool all_here_ = true;  // on this host
  std::shared_ptr<SharedMemory> memory_;
  shared::GroupLayout layout_;
  std::vector<const void*> scratch_;
  Signature signature_{};     // of the present collective
  std::string code_;          // the same, encoded
  std::uint64_t phases_ = 0;  // that this rank has passed
  bool direct_ = false;
  std::atomic<bool> busy_ = false;
};

// This process's communicator over the group, which its tasks keep: the communicator may end before they have run.
std::unique_ptr<Communicator> make_process_communicator(std::shared_ptr<ProcessGroup> group);

}  // namespace tessera::comm
