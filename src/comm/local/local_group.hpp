// Where the ranks of one communicator meet when they are threads. A collective on each rank is: enter() – all have
// posted their pointers and agree – move data, [regroup() – all have moved – move more,] finish() – nobody reads this
// rank's memory any more. Who is late, has left or disagrees is the control's to say (control/control_room.hpp); here
// is who may read whose memory, and until when.
//
// Ranks are told apart by their places in the group; errors name ranks of the job.
// Invariants: a rank moves data only between enter() and finish(), and after a failure nobody starts to. Whoever leaves
//   by an exception first waits for those who still move, so memory may be freed at once in that case too.
// Thread safety: every rank calls from one thread at a time; all state is under the room's mutex. Allocation: on
//   construction, for errors, and when a collective is the longest to describe so far.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/control/control_room.hpp"
#include "comm/signature.hpp"
#include "device/cuda/cuda_queue.hpp"

namespace tessera::comm {

// A rank brings this to a collective.
struct LocalPost {
  Signature signature{};
  const std::byte* data = nullptr;  // what peers may read until finish() returns; of a group, the first segment's
};

// A rank on a CUDA device has these marks: where its stream stands when peers may read its memory, and when it has read
// theirs.
struct LocalMarks {
  explicit LocalMarks(Device device) : ready(device), moved(device) {}
  device::CudaMark ready;
  device::CudaMark moved;
};

class LocalGroup {
 public:
  // The group is on the room's channel, whose members are these ranks of the job, by place.
  LocalGroup(ControlRoom& room, std::size_t channel, std::string name, const std::vector<int>& ranks);

  int size() const { return static_cast<int>(slots_.size()); }
  const std::string& name() const { return name_; }

  // Waits for the posts of all its ranks. Throws, the same on every rank that waits here: CommunicationError when a
  // rank does not come in time, has left, or disagrees. AbortedError when the job has failed already.
  void enter(int place, const LocalPost& post);
  void regroup(int place);
  void finish(int place);

  // Instead of finish(), when moving or regroup() threw: aborts the job.
  void fail(int place, const std::exception_ptr& exception);

  // While moving: what each rank posted, by segment.
  const std::byte* data_of(int place, std::size_t segment = 0) const {
    const LocalPost& post = slot(place).post;
    return segment == 0 ? post.data : post.signature.further.data(segment - 1);
  }
  // Makes the rank's marks. Before its first collective on a CUDA stream, which all ranks then have.
  void make_marks(int place, Device device) { slot(place).marks = std::make_unique<LocalMarks>(device); }
  LocalMarks& marks(int place) { return *slot(place).marks; }

  // Whether the rank is in a collective (Claim).
  std::atomic<bool>& busy(int place) { return slot(place).busy; }

  // Room for one pointer per rank, this rank's own.
  std::span<const void*> scratch(int place) { return slot(place).scratch; }

 private:
  using Lock = ControlRoom::Lock;
  struct Slot {
    int rank = 0;  // of the job
    LocalPost post{};
    bool moves = false;  // it may read others' memory now
    std::atomic<bool> busy = false;
    std::unique_ptr<LocalMarks> marks{};
    std::vector<const void*> scratch{};
  };

  Slot& slot(int place) { return slots_[static_cast<std::size_t>(place)]; }
  const Slot& slot(int place) const { return slots_[static_cast<std::size_t>(place)]; }
  std::condition_variable& changed() { return room_.changed(channel_); }

  void pass(Lock& lock);
  void start_moving(Lock& lock, int place);
  void stop_moving(int place);
  void wait_for_movers(Lock& lock);
  [[noreturn]] void leave_aborted(Lock& lock);

  ControlRoom& room_;
  const std::size_t channel_;
  const std::string name_;
  std::vector<Slot> slots_;   // by place
  int passing_ = 0;           // ranks that have come to the end of the present phase of moving
  std::uint64_t passed_ = 0;  // phases that all have passed
  int moving_ = 0;            // ranks that move
};

}  // namespace tessera::comm
