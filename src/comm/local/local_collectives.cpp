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

#include "comm/direct_collectives.hpp"
#include "comm/local/local_group.hpp"
#include "comm/slices.hpp"
#include "comm/task_communicator.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {
namespace {

// One rank's part of one collective: a Reader (direct_collectives.hpp) once it has met its peers.
class LocalCall {
 public:
  // queue: null for memory of the CPU, moved by the calling thread.
  LocalCall(LocalGroup& group, int place, device::CudaQueue* queue, const Signature& signature)
      : group_(group), place_(place), queue_(queue), signature_(signature) {}

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

  // Meets the peers, and between two meetings runs each of the stages.
  template <typename First, typename... Later>
  void meet(const std::byte* data, const First& first, const Later&... later) const {
    record(&LocalMarks::ready);
    group_.enter(place_, {.signature = signature_, .data = data});
    move(&LocalMarks::ready, first);
    ((group_.regroup(place_), move(&LocalMarks::moved, later)), ...);
    group_.finish(place_);
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

  // A stage moves data after the peers' memory is ready, and marks where this rank has read it.
  template <typename Stage>
  void move(device::CudaMark LocalMarks::*before, const Stage& stage) const {
    try {
      wait_for_peers(before);
      stage();
      record(&LocalMarks::moved);
    } catch (...) {
      group_.fail(place_, std::current_exception());
      throw;
    }
  }

  LocalGroup& group_;
  int place_;
  device::CudaQueue* queue_;
  Signature signature_;
};

// ---- one rank's part of each collective, on the calling thread ----
//
// Throws what LocalGroup::enter() throws; any other exception has aborted the job.

void run_collective(const LocalCall& call, std::span<const AllGather> segments) {
  call.meet(segments.front().data, [&] {
    for (std::size_t i = 0; i < segments.size(); ++i) gather_directly(call, segments[i], i);
  });
}

void run_collective(const LocalCall& call, std::span<const ReduceScatter> segments) {
  call.meet(segments.front().data, [&] {
    for (std::size_t i = 0; i < segments.size(); ++i) scatter_directly(call, segments[i], i);
  });
}

void run_collective(const LocalCall& call, const AllReduce& operation) {
  call.meet(
      reinterpret_cast<const std::byte*>(operation.data), [&] { sum_own_slice(call, operation); },
      [&] { copy_other_slices(call, operation); });
}

void run_collective(const LocalCall& call, const Broadcast& operation) {
  call.meet(operation.data, [&] { copy_from_root(call, operation); });
}

void run_collective(const LocalCall& call, const Barrier&) {
  call.meet(nullptr, [] {});
}

class LocalCommunicator final : public TaskCommunicator<LocalCommunicator> {
 public:
  // Tasks on a stream refer to the group, not to the communicator: it may end before they have run.
  LocalCommunicator(Members members, LocalGroup& group)
      : TaskCommunicator(std::move(members), group.name()), group_(group) {}

 private:
  friend TaskCommunicator<LocalCommunicator>;

  static device::CudaQueue* queue_of(Stream& stream) {
    return stream.device().kind() == DeviceKind::cuda ? &device::cuda_queue(stream) : nullptr;
  }

  template <typename Operation>
  void submit(Stream& stream, const Signature& signature, const Operation& operation) {
    stream.submit([&group = group_, place = rank(), queue = queue_of(stream), signature, operation] {
      run_collective(LocalCall(group, place, queue, signature), operation);
    });
  }

  LocalGroup& group_;
};

}  // namespace

std::unique_ptr<Communicator> make_local_communicator(Members members, LocalGroup& group) {
  return std::make_unique<LocalCommunicator>(std::move(members), group);
}

}  // namespace tessera::comm
