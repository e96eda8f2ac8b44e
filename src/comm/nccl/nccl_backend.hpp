// The nccl backend: a rank has a CUDA device of its own, and is a thread or a process.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "comm/control/control_communicator.hpp"
#include "comm/nccl/nccl_group.hpp"
#include "comm/nccl/nccl_job.hpp"
#include "comm/rank_log.hpp"
#include "comm/task_communicator.hpp"
#include "comm/world_backend.hpp"

namespace tessera::comm {

// The nccl backend's collectives: each becomes one task on the rank's stream.

class NcclCommunicator final : public TaskCommunicator<NcclCommunicator> {
 public:
  // Tasks on a stream keep the group: the communicator may end before they have run.
  explicit NcclCommunicator(std::shared_ptr<NcclGroup> group)
      : TaskCommunicator(group->members(), group->name()), group_(std::move(group)) {}

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

class NcclBackend final : public World::Backend {
 public:
  NcclBackend(NcclJob& job, int threads, RankLog& log)
      : Backend({.name = "nccl",
                 .rank = job.control().rank(),
                 .size = job.control().size(),
                 .device = job.device(),
                 .threads = threads,
                 .timeout = job.control().timeout()},
                job.control(), log),
        job_(job) {}

  Arena make_arena(Bytes size) final { return job_.make_arena(size); }
  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final {
    if (use.host_memory) return std::make_unique<ControlCommunicator>(job_.control(), name, use.group);
    return std::make_unique<NcclCommunicator>(job_.make_group(name, use));
  }
  CollectiveStaging staging() const final { return job_.staging(); }
  Device host_device() const final { return Device::cpu(); }
  bool gathers_over_device() const final { return true; }

 private:
  NcclJob& job_;
};

}  // namespace tessera::comm
