// The nccl backend's collectives: each becomes one task on the rank's stream.
#pragma once

#include <memory>
#include <utility>

#include "comm/control/control_communicator.hpp"
#include "comm/nccl/nccl_group.hpp"
#include "comm/task_communicator.hpp"

namespace tessera::comm {

class NcclCommunicator final : public TaskCommunicator<NcclCommunicator> {
 public:
  // Tasks on a stream keep the group: the communicator may end before they have run.
  explicit NcclCommunicator(std::shared_ptr<NcclGroup> group)
      : TaskCommunicator(group->rank(), group->size(), group->name()), group_(std::move(group)) {}

 private:
  friend TaskCommunicator<NcclCommunicator>;

  // A stream of the CPU has memory of the host, which goes over the control channel: the parts of checkpoints do.
  template <typename Operation>
  void submit(Stream& stream, const Signature& signature, const Operation& operation) {
    if (stream.device().kind() == DeviceKind::cpu) {
      stream.submit([group = group_->on_host(), signature, operation] { run_collective(group, signature, operation); });
      return;
    }
    device::CudaQueue& queue = device::cuda_queue(stream);
    const std::uint64_t turn = group_->order().take();
    stream.submit([group = group_, &queue, turn, signature, operation] {
      group->run({.queue = queue, .turn = turn, .signature = signature}, operation);
    });
  }

  std::shared_ptr<NcclGroup> group_;
};

}  // namespace tessera::comm
