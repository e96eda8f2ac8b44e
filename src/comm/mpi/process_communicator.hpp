// The mpi backend's collectives: each becomes one task on the rank's stream.
#pragma once

#include <memory>

#include "comm/mpi/process_collectives.hpp"
#include "comm/mpi/process_group.hpp"
#include "comm/task_communicator.hpp"

namespace tessera::comm {

class ProcessCommunicator final : public TaskCommunicator<ProcessCommunicator> {
 public:
  // Tasks on a stream keep the group: the communicator may end before they have run.
  explicit ProcessCommunicator(std::shared_ptr<ProcessGroup> group)
      : TaskCommunicator(group->rank(), group->size(), group->name()), group_(std::move(group)) {}

 private:
  friend TaskCommunicator<ProcessCommunicator>;
  template <typename Operation>
  void submit(Stream& stream, const Signature& signature, const Operation& operation) {
    stream.submit(
        [call = ProcessCall{.group = group_, .signature = signature}, operation] { run_collective(call, operation); });
  }

  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace tessera::comm
