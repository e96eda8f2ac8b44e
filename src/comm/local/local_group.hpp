// Where the ranks of one communicator meet. A collective on each rank is: enter() – all have posted their pointers and
// agree – move data, [regroup() – all have moved – move more,] finish() – nobody reads this rank's memory any more.
//
// Invariants: a rank moves data only between enter() and finish(), and after a failure nobody starts to. Whoever leaves
//   by an exception first waits for those who still move, so memory may be freed at once in that case too.
// Thread safety: every rank calls from one thread at a time. Allocation: on construction, and for errors.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/collective_errors.hpp"
#include "comm/local/local_job.hpp"
#include "comm/signature.hpp"
#include "device/cuda/cuda_queue.hpp"

namespace tessera::comm {

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
  LocalGroup(LocalJob& job, std::string name);

  int size() const { return job_.size(); }
  const std::string& name() const { return name_; }

  // Waits for all ranks' posts. Throws, the same on every rank that waits here: CommunicationError when a rank does not
  // come in time, has left, or disagrees. AbortedError when the job has failed already.
  void enter(int rank, const LocalPost& post);
  void regroup(int rank);
  void finish(int rank);

  // Instead of finish(), when moving threw: aborts the job.
  void fail(int rank, const std::exception_ptr& exception);

  // While moving: what each rank posted, by segment.
  const std::byte* data_of(int rank, std::size_t segment = 0) const {
    const LocalPost& post = slot(rank).post;
    return segment == 0 ? post.data : post.signature.further.data(segment - 1);
  }
  // Makes the rank's marks. Before its first collective on a CUDA stream, which all ranks then have.
  void make_marks(int rank, Device device) { slot(rank).marks = std::make_unique<LocalMarks>(device); }
  LocalMarks& marks(int rank) { return *slot(rank).marks; }

  // Room for one pointer per rank, this rank's own.
  std::span<const void*> scratch(int rank) { return slot(rank).scratch; }

  void wake() noexcept { changed_.notify_all(); }

 private:
  struct Slot {
    LocalPost post;
    std::uint64_t posts = 0;
    bool busy = false;  // between enter() and finish()
    std::unique_ptr<LocalMarks> marks;
    std::vector<const void*> scratch;
  };

  Slot& slot(int rank) { return slots_[static_cast<std::size_t>(rank)]; }
  const Slot& slot(int rank) const { return slots_[static_cast<std::size_t>(rank)]; }

  bool arrive(std::uint64_t& phase);
  void open_next_phase();
  void wait_for_posts(Lock& lock, int rank, std::uint64_t phase);
  void wait_for_movers(Lock& lock);
  void pass(Lock& lock);
  void start_moving(Lock& lock);
  void stop_moving();

  void claim(const Lock& lock, int rank);
  void check_left(const Lock& lock, int rank);
  void check_agreement(const Lock& lock, int rank);
  [[noreturn]] void give_up(const Lock& lock, int rank);
  [[noreturn]] void conclude(const Lock& lock, int rank, const std::string& text);
  [[noreturn]] void leave_aborted(Lock& lock);
  Standstill standstill(int rank, std::span<const int> waiting, std::span<const int> missing) const;
  std::vector<int> waiting_ranks(int rank) const;
  std::vector<int> missing_ranks(int rank) const;

  LocalJob& job_;
  const std::string name_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;             // by rank
  int arrived_ = 0;                     // ranks that have come to the end of the present phase
  std::uint64_t phase_ = 0;             // counts what all ranks have passed: posts, regroupings, finishes
  int moving_ = 0;                      // ranks that may read others' memory now
  std::optional<std::string> verdict_;  // why the ranks in the present collective failed
};

}  // namespace tessera::comm
