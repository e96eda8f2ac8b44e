// The local backend's collectives: a rank's stream thread copies from, or sums over, the other ranks' memory directly.
// On the CPU it blocks until all ranks have done theirs; on a CUDA device until all ranks have issued theirs to their
// queues, whose order does the rest.
//
// On a CUDA device a meeting orders the queues, too: each rank records a mark before it and waits for its peers' after
// it. Marks are recorded before the host threads meet, so no queue waits for what was not issued: there is no cycle.
#include <exception>
#include <memory>
#include <span>
#include <utility>

#include "comm/local/local_group.hpp"
#include "comm/meeting_collectives.hpp"
#include "comm/task_communicator.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {
namespace {

// A rank in its group. Both outlive its tasks.
struct LocalSeat {
  LocalGroup& group;
  ThreadControl& control;
  int place;
};

// One rank's part of one collective: a Meeting (meeting_collectives.hpp), which reads its peers' memory.
class LocalCall {
 public:
  // queue: null for memory of the CPU, moved by the calling thread.
  LocalCall(const LocalSeat& seat, device::CudaQueue* queue, const Signature& signature)
      : group_(seat.group), control_(seat.control), place_(seat.place), queue_(queue), signature_(signature) {}

  template <typename Operation>
  void operator()(const Operation& operation) const {
    run_collective(*this, operation);
  }

  int place() const { return place_; }
  int size() const { return group_.size(); }
  const std::byte* data_of(int place, std::size_t segment) const { return group_.data_of(place, segment); }
  std::span<const void*> scratch() const { return group_.scratch(place_); }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    queue_ != nullptr ? queue_->copy(to, from, Bytes(bytes)) : kernels::copy_cpu(to, from, Bytes(bytes));
  }
  void sum(const kernels::RankedSum& of) const {
    queue_ != nullptr ? kernels::ranked_sum_cuda(queue_->native(), of) : kernels::ranked_sum_cpu(of);
  }

  // Data moves after the peers' memory is ready; marks say where this rank has read it.
  template <typename Move>
  void meet(const std::byte* data, const Move& move) const {
    const Claim claim(group_.busy(place_), control_, group_.name());
    record(&LocalMarks::ready);
    group_.enter(place_, {.signature = signature_, .data = data});
    try {
      wait_for_peers(&LocalMarks::ready);
      move();
      record(&LocalMarks::moved);
    } catch (...) {
      group_.fail(place_, std::current_exception());
      throw;
    }
    group_.finish(place_);
    wait_for_peers(&LocalMarks::moved);
  }
  void regroup() const {
    record(&LocalMarks::moved);
    group_.regroup(place_);
    wait_for_peers(&LocalMarks::moved);
  }

 private:
  void record(device::CudaMark LocalMarks::*mark) const {
    if (queue_ != nullptr) queue_->record(group_.marks(place_).*mark);
  }
  void wait_for_peers(device::CudaMark LocalMarks::*mark) const {
    if (queue_ == nullptr) return;
    for_each_peer(place_, size(), [&](int peer) { queue_->wait(group_.marks(peer).*mark); });
  }

  LocalGroup& group_;
  ThreadControl& control_;
  int place_;
  device::CudaQueue* queue_;
  Signature signature_;
};

struct LocalCalls {
  LocalSeat seat;

  LocalCall call(Stream& stream, const Signature& signature) const {
    const bool on_device = stream.device().kind() == DeviceKind::cuda;
    return {seat, on_device ? &device::cuda_queue(stream) : nullptr, signature};
  }
};

}  // namespace

std::unique_ptr<Communicator> make_local_communicator(Members members, LocalGroup& group, ThreadControl& control) {
  const LocalSeat seat{.group = group, .control = control, .place = members.place};
  return make_task_communicator(std::move(members), group.name(), LocalCalls{seat});
}

}  // namespace tessera::comm
