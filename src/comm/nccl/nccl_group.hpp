// One rank's end of an NCCL communicator, and the order in which a rank launches its collectives.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/control/control.hpp"
#include "comm/control/control_communicator.hpp"
#include "comm/nccl/nccl_library.hpp"
#include "comm/pinned.hpp"
#include "comm/signature.hpp"
#include "device/cuda/cuda_queue.hpp"
#include "plan/collective_memory.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/comm/run.hpp"
#include "tessera/comm/world.hpp"
#include "tessera/device/arena.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {

// ---- the order of launches ----
//
// The one order in which a rank launches its collectives on all communicators: that in which its host thread called
// them, although each stream issues from a thread of its own. On all ranks it is the plan's, so two communicators never
// wait for each other crosswise. NCCL from 2.26 on keeps that order on the device (NCCL_LAUNCH_ORDER_IMPLICIT). Its
// order is the context's, though, which ranks that are threads and share a device have in common: one rank's reduction
// would stand behind another's gather, which waits for the first. There, and for older releases, launches wait by
// events.
//
// Thread safety: all of it.

class LaunchOrder {
 public:
  // by_events: each launch also waits, on the device, for the one before it on another stream; for an NCCL that does
  // not keep the order itself.
  LaunchOrder(Control& control, Device device, bool by_events);

  bool by_events() const { return by_events_; }

  // The place of a call, in the order of calls.
  std::uint64_t take();

  // While it lives, it is that place's turn. Waits for its turn; throws as Control::fail_at() when the job fails, or
  // fails it when an earlier call is not launched within the job's timeout.
  class Turn : Pinned {
   public:
    Turn(LaunchOrder& order, std::uint64_t place, device::CudaQueue& queue);
    ~Turn();

   private:
    LaunchOrder& order_;
    device::CudaQueue& queue_;
  };

 private:
  void await(std::uint64_t place);

  Control& control_;
  const bool by_events_;
  device::CudaMark last_launch_;
  device::CudaQueue* last_queue_ = nullptr;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t taken_ = 0;
  std::uint64_t next_ = 1;
};

// ---- a communicator ----
//
// One rank's end of an NCCL communicator. A collective is a task on the rank's stream: it announces its signature to
// the other ranks without waiting for them, launches when it is its turn, and is watched until the device has ended it
// (NcclJob). That all ranks meant the same is known when the stream synchronises: settle().
//
// Thread safety: one stream's task at a time, and the job's watcher beside it. Outlived by the job, not by tasks.

struct NcclOptions {
  // ranked: every element travels to its owner alone, in the wire's type. fast: NCCL's own reduce-scatter, the same on
  // every run of one machine, but nothing more.
  SumChoice sums = SumChoice::ranked;
  // A communicator that brings none has this staging: what arrives from peers before it is summed. Larger data goes in
  // rounds of this size, and `fast` needs one rank's part in the wire's type in it.
  Bytes staging = plan::staging_most;
  // The program's own communicator over all ranks, from which every other one is split; null: NCCL makes them by ids.
  NcclLibrary::Handle parent = nullptr;
};

class NcclJob;

// The communicators of a rank share these.
struct NcclParts {
  NcclLibrary& library;
  Control& control;
  LaunchOrder& order;
  NcclJob& job;
  Device device;
  NcclOptions options;
};

class NcclGroup final : public device::QueueCheck, public std::enable_shared_from_this<NcclGroup> {
 public:
  // Collective over the members, of which all give the first one's id. Blocks until every one is connected, and has
  // talked to every other one. The use's staging is at least plan::gather_staging(), or the group takes its own.
  NcclGroup(const NcclParts& parts, Identity identity, const CommunicatorUse& use, const NcclLibrary::Id& id);
  ~NcclGroup() final;

  const Members& members() const { return identity_.members; }
  const std::string& name() const { return identity_.name; }
  LaunchOrder& order() { return parts_.order; }
  // The same communicator for memory of the host.
  ControlGroup on_host() const {
    return {.control = parts_.control, .channel = channel(), .place = place(), .size = size()};
  }

  // A collective, from a task on the stream of `queue`. Throws when the job has failed, and what NCCL reports.
  struct Call {
    device::CudaQueue& queue;
    std::uint64_t turn;
    Signature signature;
  };
  void run(const Call& call, std::span<const AllGather> segments);
  void run(const Call& call, std::span<const ReduceScatter> segments);
  void run(const Call& call, const AllReduce& operation);
  void run(const Call& call, const Broadcast& operation);
  void run(const Call& call, const Redistribute& operation);
  void run(const Call& call, const Barrier& operation);

  // Blocks until all ranks have announced what this one has, and equally. Throws what that comes to, and the job's
  // failure.
  void settle() final;

  // The watcher looks for errors and for collectives that do not end; after the job's failure it ends NCCL.
  void watch() noexcept;

  // Registers memory of this rank's with NCCL, while it lives. `memory` comes from here, too, when it goes.
  void add_memory(void* data, Bytes size);
  void remove_memory(void* data) noexcept;

 private:
  struct Flight {  // a collective that the device has not ended
    explicit Flight(Device device) : begin(device), end(device) {}
    device::CudaMark begin;
    device::CudaMark end;
    Signature signature;
    Position position;
    bool issued = false;  // the end mark is recorded
    std::optional<std::chrono::steady_clock::time_point> since;
  };
  struct Piece {  // of a reduction, in staging
    const ReduceScatter* segment;
    std::size_t begin;
    std::size_t count;
    std::size_t place;  // bytes in staging
  };

  template <typename Work>
  void launch(const Call& call, const Work& work);
  Flight& take_off(const Call& call, const Position& position);
  void land(Flight& flight, device::CudaQueue& queue);
  void complete(NcclState state) { complete(state, handle_, parts_.control.timeout()); }
  void complete(NcclState state, NcclLibrary::Handle handle, std::chrono::milliseconds timeout);
  template <typename Function>
  void in_group(const Function& function);

  void exchange(const Call& call, std::span<const Piece> pieces);
  void reduce_ranked(const Call& call, std::span<const ReduceScatter> segments);
  void reduce_fast(const Call& call, std::span<const ReduceScatter> segments);
  void sum_pieces(const Call& call, std::span<const Piece> pieces);
  void sum_in_staging(const Call& call, const kernels::RankedSum& sum, std::byte* first, Bytes stride);

  std::size_t channel() const { return identity_.channel; }
  int place() const { return members().place; }
  int size() const { return members().size(); }
  void connect(const NcclLibrary::Id& id);
  void join(const NcclLibrary::Id& id);
  NcclLibrary::Handle split(NcclLibrary::Handle parent, const NcclLibrary::Place& where,
                            std::chrono::milliseconds timeout);
  Bytes greeting_part() const;
  // A byte and 32 MiB go to everybody, because NCCL connects what an algorithm needs when a size first takes it.
  void greet_everybody(device::CudaQueue& queue, std::byte* memory);
  void look_at(Flight& flight);
  [[noreturn]] void fail(const std::string& what, const Signature& signature);
  std::string place_of(const Signature& signature) const;
  NcclLibrary::Call on(const Call& call) const { return {.handle = handle_, .stream = call.queue.native()}; }
  std::byte* staging(std::size_t place) { return staging_.data() + place; }

  const NcclParts parts_;
  const Identity identity_;
  const int group_;    // which of several, counted from 0
  Arena own_staging_;  // empty where the communicator was given some
  const std::span<std::byte> staging_;
  std::vector<Piece> pieces_;               // of the present round
  std::vector<const void*> contributions_;  // of the present sum

  std::mutex handle_mutex_;  // of NCCL's calls
  NcclLibrary::Handle handle_ = nullptr;
  bool ended_ = false;
  std::vector<std::pair<void*, void*>> memory_;  // data, and what NCCL calls it

  std::mutex flights_mutex_;
  std::list<Flight> flights_;
  std::list<Flight> landed_;  // to be used again
  std::optional<Position> last_;
  Signature last_signature_{};
};

// Work of the library is launched under the mutex under which the watcher ends it.
template <typename Work>
void NcclGroup::launch(const Call& call, const Work& work) {
  call.queue.add_check(shared_from_this());
  const Position position = parts_.control.announce(channel(), call.signature);
  if (position.number == 0) parts_.control.fail_at(position);
  const LaunchOrder::Turn turn(parts_.order, call.turn, call.queue);
  Flight& flight = take_off(call, position);
  try {
    const std::lock_guard lock(handle_mutex_);
    if (ended_) parts_.control.fail_at(position);
    work();
  } catch (const NcclFailure& failure) {
    fail(failure.what(), call.signature);
  }
  land(flight, call.queue);
}

template <typename Function>
void NcclGroup::in_group(const Function& function) {
  parts_.library.group_begin();
  try {
    function();
  } catch (...) {
    try {
      parts_.library.group_end();
    } catch (const NcclFailure&) {  // the first one is the cause
    }
    throw;
  }
  complete(parts_.library.group_end());
}

}  // namespace tessera::comm
