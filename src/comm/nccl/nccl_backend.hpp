// The nccl backend: a rank has a CUDA device of its own, and is a thread or a process.
#pragma once

#include <cstdint>
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

// One collective: a task on the rank's stream, which keeps the group.
struct NcclCall {
  std::shared_ptr<NcclGroup> group;
  device::CudaQueue* queue;  // null: a stream of the CPU
  std::uint64_t turn;
  Signature signature;

  // Memory of the host goes over the control channel: the parts of checkpoints do.
  template <typename Operation>
  void operator()(const Operation& operation) const {
    if (queue == nullptr) return ControlCall{.group = group->on_host(), .signature = signature}(operation);
    group->run({.queue = *queue, .turn = turn, .signature = signature}, operation);
  }
};

struct NcclCalls {
  std::shared_ptr<NcclGroup> group;
  NcclCall call(Stream& stream, const Signature& signature) const {
    if (stream.device().kind() == DeviceKind::cpu) return {group, nullptr, 0, signature};
    return {group, &device::cuda_queue(stream), group->order().take(), signature};
  }
};

class NcclBackend final : public World::Backend {
 public:
  NcclBackend(NcclJob& job, int threads, RankLog& log, Hosts hosts)
      : Backend({.name = "nccl",
                 .rank = job.control().rank(),
                 .size = job.control().size(),
                 .device = job.device(),
                 .threads = threads,
                 .timeout = job.control().timeout(),
                 .hosts = std::move(hosts)},
                job.control(), log),
        job_(job) {}

  Arena make_arena(Bytes size) final { return job_.make_arena(size); }
  std::unique_ptr<Communicator> make_communicator(std::string name, const CommunicatorUse& use) final {
    if (use.host_memory) return make_control_communicator(job_.control(), name, use.group);
    std::shared_ptr<NcclGroup> group = job_.make_group(name, use);
    return make_task_communicator(group->members(), group->name(), NcclCalls{group});
  }
  CollectiveStaging staging() const final { return job_.staging(); }
  Device host_device() const final { return Device::cpu(); }
  bool gathers_over_device() const final { return true; }

 private:
  NcclJob& job_;
};

}  // namespace tessera::comm
