// The local backend's collectives: a rank's stream thread copies from, or sums over, the other ranks' memory directly.
#pragma once

#include "comm/local/local_collectives.hpp"
#include "comm/local/local_group.hpp"
#include "comm/task_communicator.hpp"

namespace tessera::comm {

class LocalCommunicator final : public TaskCommunicator<LocalCommunicator> {
 public:
  // Tasks on a stream refer to the group, not to the communicator: it may end before they have run.
  LocalCommunicator(int rank, LocalGroup& group) : TaskCommunicator(rank, group.size(), group.name()), group_(group) {}

 private:
  friend TaskCommunicator<LocalCommunicator>;

  static device::CudaQueue* queue_of(Stream& stream) {
    return stream.device().kind() == DeviceKind::cuda ? &device::cuda_queue(stream) : nullptr;
  }

  template <typename Operation>
  void submit(Stream& stream, const Signature& signature, const Operation& operation) {
    stream.submit([&group = group_, rank = rank(), queue = queue_of(stream), signature, operation] {
      run_collective({.group = group, .rank = rank, .queue = queue, .signature = signature}, operation);
    });
  }

  LocalGroup& group_;
};

}  // namespace tessera::comm
