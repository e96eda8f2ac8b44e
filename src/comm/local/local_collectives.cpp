// The local backend's collectives: a rank's stream thread copies from, or sums over, the other ranks' memory directly.
// On the CPU it blocks until all ranks have done theirs; on a CUDA device until all ranks have issued theirs to their
// queues, whose order does the rest.
//
// What each rank reads and writes: in every stage the ranges that a rank writes in its own memory are read by no peer;
// that is why one meeting before and one after suffice (all-reduce: one more between its two stages).
//
// On a CUDA device a meeting orders the queues, too: each rank records a mark before it and waits for its peers' after
// it. Marks are recorded before the host threads meet, so no queue waits for what was not issued: there is no cycle.
#include <exception>
#include <memory>
#include <span>
#include <utility>

#include "comm/local/local_group.hpp"
#include "comm/slices.hpp"
#include "comm/task_communicator.hpp"
#include "tessera/kernels/reduce.hpp"

namespace tessera::comm {
namespace {

struct LocalCall {
  LocalGroup& group;
  int place;
  device::CudaQueue* queue;  // null: memory of the CPU, moved by the calling thread
  Signature signature;
};

template <typename Function>
void for_each_peer(const LocalCall& call, Function&& function) {
  comm::for_each_peer(call.place, call.group.size(), function);
}

void copy(const LocalCall& call, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (call.queue != nullptr) {
    call.queue->copy(to, from, Bytes(bytes));
  } else {
    kernels::copy_cpu(to, from, Bytes(bytes));
  }
}

void sum(const LocalCall& call, const kernels::RankedSum& of) {
  if (call.queue != nullptr) {
    kernels::ranked_sum_cuda(call.queue->native(), of);
  } else {
    kernels::ranked_sum_cpu(of);
  }
}

// `mark`: LocalMarks::ready or LocalMarks::moved.
void record(const LocalCall& call, device::CudaMark LocalMarks::*mark) {
  if (call.queue != nullptr) call.queue->record(call.group.marks(call.place).*mark);
}
void wait_for_peers(const LocalCall& call, device::CudaMark LocalMarks::*mark) {
  if (call.queue == nullptr) return;
  for_each_peer(call, [&](int peer) { call.queue->wait(call.group.marks(peer).*mark); });
}

// Every rank's data of a segment from `offset` bytes on, by place.
std::span<const void* const> contributions(const LocalCall& call, std::size_t offset, std::size_t segment = 0) {
  const std::span<const void*> pointers = call.group.scratch(call.place);
  for (int place = 0; place < call.group.size(); ++place) {
    pointers[static_cast<std::size_t>(place)] = call.group.data_of(place, segment) + offset;
  }
  return pointers;
}

template <typename Stage>
void move(const LocalCall& call, const Stage& stage) {
  try {
    stage();
  } catch (...) {
    call.group.fail(call.place, std::current_exception());
    throw;
  }
}

// A stage moves data after the peers' memory is ready, and marks where this rank has read it.
template <typename Stage>
void move_between(const LocalCall& call, device::CudaMark LocalMarks::*before, Stage& stage) {
  const auto whole = [&] {
    wait_for_peers(call, before);
    stage();
    record(call, &LocalMarks::moved);
  };
  move(call, whole);
}

template <typename First, typename... Later>
void meet(const LocalCall& call, const std::byte* data, First first, Later... later) {
  record(call, &LocalMarks::ready);
  call.group.enter(call.place, {.signature = call.signature, .data = data});
  move_between(call, &LocalMarks::ready, first);
  ((call.group.regroup(call.place), move_between(call, &LocalMarks::moved, later)), ...);
  call.group.finish(call.place);
  wait_for_peers(call, &LocalMarks::moved);
}

// ---- one rank's part of each collective, on the calling thread ----
//
// Throws what LocalGroup::enter() throws; any other exception has aborted the job.

void run_collective(const LocalCall& call, std::span<const AllGather> segments) {
  meet(call, segments.front().data, [&] {
    for (std::size_t segment = 0; segment < segments.size(); ++segment) {
      const AllGather& operation = segments[segment];
      const std::size_t shard_bytes = operation.shard.count();
      for_each_peer(call, [&](int peer) {
        const std::size_t offset = static_cast<std::size_t>(peer) * shard_bytes;
        copy(call, operation.data + offset, call.group.data_of(peer, segment) + offset, shard_bytes);
      });
    }
  });
}

void run_collective(const LocalCall& call, std::span<const ReduceScatter> segments) {
  meet(call, segments.front().data, [&] {
    for (std::size_t segment = 0; segment < segments.size(); ++segment) {
      const ReduceScatter& operation = segments[segment];
      if (operation.shard_elements == 0) continue;
      const std::uint64_t shard_bytes = (operation.shard_elements * size_of(operation.wire)).count();
      sum(call, {.contributions = contributions(call, static_cast<std::size_t>(call.place) * shard_bytes, segment),
                 .type = operation.wire,
                 .result = operation.result,
                 .count = operation.shard_elements,
                 .accumulate = operation.accumulate,
                 .divisor = operation.divisor});
    }
  });
}

// First each rank sums its slice into its own memory, then it copies the other slices from those who summed them.
void run_collective(const LocalCall& call, const AllReduce& operation) {
  auto* const data = reinterpret_cast<std::byte*>(operation.data);
  const auto sum_own_slice = [&] {
    const Slice own = slice_of(operation.elements, call.place, call.group.size());
    if (own.size() == 0) return;
    sum(call, {.contributions = contributions(call, own.begin * sizeof(float)),
               .result = operation.data + own.begin,
               .count = own.size(),
               .divisor = operation.divisor});
  };
  const auto copy_other_slices = [&] {
    for_each_peer(call, [&](int peer) {
      const Slice slice = slice_of(operation.elements, peer, call.group.size());
      const std::size_t offset = slice.begin * sizeof(float);
      copy(call, data + offset, call.group.data_of(peer) + offset, slice.size() * sizeof(float));
    });
  };
  meet(call, data, sum_own_slice, copy_other_slices);
}

void run_collective(const LocalCall& call, const Broadcast& operation) {
  meet(call, operation.data, [&] {
    if (call.place == operation.root) return;
    copy(call, operation.data, call.group.data_of(operation.root), operation.size.count());
  });
}

void run_collective(const LocalCall& call, const Barrier&) {
  meet(call, nullptr, [] {});
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
      run_collective({.group = group, .place = place, .queue = queue, .signature = signature}, operation);
    });
  }

  LocalGroup& group_;
};

}  // namespace

std::unique_ptr<Communicator> make_local_communicator(Members members, LocalGroup& group) {
  return std::make_unique<LocalCommunicator>(std::move(members), group);
}

}  // namespace tessera::comm
