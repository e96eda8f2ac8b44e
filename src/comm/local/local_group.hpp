// What ranks that are threads share: the job, which fails once, for all, and for each communicator the group in which
// its ranks meet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/collective_errors.hpp"
#include "comm/job_failure.hpp"
#include "comm/members.hpp"
#include "comm/patience.hpp"
#include "comm/signature.hpp"
#include "device/cuda/cuda_queue.hpp"

namespace tessera::comm {

// ---- the job ----
//
// The state that the ranks of one process share: the job's first failure, who has left, and the communicators' groups.
//
// Thread safety: one mutex for the whole job. A failure and its consequences for every group are thus one atomic step,
//   and which error a rank sees is never a race. Functions that take a Lock expect it held on mutex().

class LocalGroup;
using Lock = std::unique_lock<std::mutex>;

class LocalJob {
 public:
  LocalJob(int size, std::chrono::milliseconds timeout);
  ~LocalJob();
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  std::mutex& mutex() { return mutex_; }

  // The first failure wins; every rank that waits is woken.
  void abort(int rank, std::string_view cause, std::exception_ptr exception) noexcept;
  void abort(const Lock& lock, int rank, std::string_view cause, std::exception_ptr exception) noexcept;

  // Null while nothing failed; constant afterwards. Needs no lock.
  const JobFailure* failure() const noexcept { return failure_.get(); }

  // Signs of life, by rank.
  SignOfLife& life(int rank) { return lives_[static_cast<std::size_t>(rank)]; }

  // The rank takes part in nothing more.
  void leave(int rank) noexcept;
  bool anyone_left(const Lock&) const { return anyone_left_; }
  bool has_left(const Lock&, int rank) const { return left_[static_cast<std::size_t>(rank)]; }

  // Where all ranks meet to make communicators.
  LocalGroup& creation() { return *creation_; }
  // Of the world's communicator number `index`, the group of these ranks, which whoever asks first makes. It lives as
  // long as the job.
  LocalGroup& group(std::size_t index, const std::string& name, const std::vector<int>& ranks);

 private:
  void wake_all() noexcept;

  const int size_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::vector<SignOfLife> lives_;  // by rank
  std::vector<bool> left_;         // by rank
  bool anyone_left_ = false;
  std::unique_ptr<LocalGroup> creation_;
  // By index and first rank: groups of one communicator have no rank in common.
  std::map<std::pair<std::size_t, int>, std::unique_ptr<LocalGroup>> groups_;
  FirstFailure failure_;
};

// ---- a communicator's meeting point ----
//
// Where the ranks of one communicator meet. A collective on each rank is: enter() – all have posted their pointers and
// agree – move data, [regroup() – all have moved – move more,] finish() – nobody reads this rank's memory any more.
// Ranks are told apart by their places in the group; errors name ranks of the job.
//
// Invariants: a rank moves data only between enter() and finish(), and after a failure nobody starts to. Whoever leaves
//   by an exception first waits for those who still move, so memory may be freed at once in that case too.
// Thread safety: every rank calls from one thread at a time. Allocation: on construction, and for errors.

// What a rank brings to a collective.
struct LocalPost {
  Signature signature{};
  const std::byte* data = nullptr;  // what peers may read until finish() returns; of a group, the first segment's
};

// Of a rank on a CUDA device: where its stream stands when peers may read its memory, and when it has read theirs.
struct LocalMarks {
  explicit LocalMarks(Device device) : ready(device), moved(device) {}
  device::CudaMark ready;
  device::CudaMark moved;
};

class LocalGroup {
 public:
  // ranks: of the job, by place.
  LocalGroup(LocalJob& job, std::string name, const std::vector<int>& ranks);

  int size() const { return static_cast<int>(slots_.size()); }
  const std::string& name() const { return name_; }

  // Waits for the posts of all its ranks. Throws, the same on every rank that waits here: CommunicationError when a
  // rank does not come in time, has left, or disagrees. AbortedError when the job has failed already.
  void enter(int place, const LocalPost& post);
  void regroup(int place);
  void finish(int place);

  // Instead of finish(), when moving threw: aborts the job.
  void fail(int place, const std::exception_ptr& exception);

  // While moving: what each rank posted, by segment.
  const std::byte* data_of(int place, std::size_t segment = 0) const {
    const LocalPost& post = slot(place).post;
    return segment == 0 ? post.data : post.signature.further.data(segment - 1);
  }
  // Makes the rank's marks. Before its first collective on a CUDA stream, which all ranks then have.
  void make_marks(int place, Device device) { slot(place).marks = std::make_unique<LocalMarks>(device); }
  LocalMarks& marks(int place) { return *slot(place).marks; }

  // Room for one pointer per rank, this rank's own.
  std::span<const void*> scratch(int place) { return slot(place).scratch; }

  void wake() noexcept { changed_.notify_all(); }

 private:
  struct Slot {
    int rank;  // of the job
    LocalPost post{};
    std::uint64_t posts = 0;
    bool busy = false;  // between enter() and finish()
    std::unique_ptr<LocalMarks> marks{};
    std::vector<const void*> scratch{};
  };

  Slot& slot(int place) { return slots_[static_cast<std::size_t>(place)]; }
  const Slot& slot(int place) const { return slots_[static_cast<std::size_t>(place)]; }

  bool arrive(std::uint64_t& phase);
  void open_next_phase();
  void wait_for_posts(Lock& lock, int place, std::uint64_t phase);
  void wait_for_movers(Lock& lock);
  void pass(Lock& lock);
  void start_moving(Lock& lock);
  void stop_moving();

  void claim(const Lock& lock, int place);
  void check_left(const Lock& lock, int place);
  void check_agreement(const Lock& lock, int place);
  void follow_life(int place);
  void check_late(const Lock& lock, int place, const Patience& patience);
  [[noreturn]] void conclude(const Lock& lock, int place, const std::string& text);
  [[noreturn]] void leave_aborted(Lock& lock);
  Standstill standstill(int place, std::span<const int> waiting, std::span<const int> missing) const;
  std::vector<int> waiting_ranks(int place) const;
  std::vector<int> missing_ranks(int place) const;
  std::vector<const Slot*> by_rank() const;
  template <typename Condition>
  std::vector<int> ranks_where(Condition&& condition) const;

  LocalJob& job_;
  const std::string name_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;             // by place
  int arrived_ = 0;                     // ranks that have come to the end of the present phase
  std::uint64_t phase_ = 0;             // counts what all ranks have passed: posts, regroupings, finishes
  int moving_ = 0;                      // ranks that may read others' memory now
  std::optional<std::string> verdict_;  // why the ranks in the present collective failed
};

// A rank's communicator over the group of these members, which outlives it and its tasks.
std::unique_ptr<Communicator> make_local_communicator(Members members, LocalGroup& group);

}  // namespace tessera::comm
