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

class NcclBackend final : public World::Backend {
 public:
  NcclBackend(NcclJob& job, int threads, RankLog& log, Place place)
      : Backend({.name = "nccl", .device = job.device(), .threads = threads, .place = std::move(place)}, job.control(),
                log),
        job_(job) {}

  Arena make_arena(Bytes size) final { return job_.make_arena(size); }
  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final {
    if (use.host_memory) return make_control_communicator(job_.control(), name, use.group);
    std::shared_ptr<NcclGroup> group = job_.make_group(name, use);
    return make_task_communicator(group->members(), group->name(), [group](Stream& stream, const Signature& signature) {
      const bool on_host = stream.device().kind() == DeviceKind::cpu;
      device::CudaQueue* const queue = on_host ? nullptr : &device::cuda_queue(stream);
      return [group, queue, turn = on_host ? 0 : group->order().take(), signature](const auto& operation) {
        if (queue != nullptr) return group->run({.queue = *queue, .turn = turn, .signature = signature}, operation);
        // Memory of the host goes over the control channel: the parts of checkpoints do.
        ControlMeeting meeting(group->on_host(), signature);
        run_collective(meeting, operation);
      };
    });
  }
  CollectiveStaging staging() const final { return job_.staging(); }
  Device host_device() const final { return Device::cpu(); }
  bool gathers_over_device() const final { return true; }

 private:
  NcclJob& job_;
};

}  // namespace tessera::comm
